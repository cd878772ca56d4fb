"""Environment variables: read once, validated, named in their errors."""

import re

import pytest

from dcp_comm.errors import CommUsageError
from dcp_comm.settings import Settings


def test_nothing_set_means_defaults() -> None:
    assert Settings.from_environment({}) == Settings()
    assert Settings.from_environment({"DCP_COMM_CHECK": "", "DCP_COMM_RANGES": ""}) == Settings()


@pytest.mark.parametrize(
    ("check", "on_cpu", "on_cuda"), [("", 1, 0), ("0", 0, 0), ("merge", 1, 1), ("all", 2, 2)]
)
def test_check_levels(check: str, on_cpu: int, on_cuda: int) -> None:
    settings = Settings.from_environment({"DCP_COMM_CHECK": check})
    assert (settings.check_level("cpu"), settings.check_level("cuda")) == (on_cpu, on_cuda)


def test_ranges_are_a_switch() -> None:
    assert Settings.from_environment({"DCP_COMM_RANGES": "1"}).ranges
    assert not Settings.from_environment({"DCP_COMM_RANGES": "0"}).ranges


@pytest.mark.parametrize(
    ("name", "value", "need"),
    [
        ("DCP_COMM_CHECK", "2", "one of 0, merge, all"),
        ("DCP_COMM_CHECK", "ALL", "one of 0, merge, all"),
        ("DCP_COMM_RANGES", "yes", "one of 0, 1"),
        ("DCP_COMM_KERNELS", "triton", "one of cuda, torch"),
        ("DCP_COMM_CACHE_DIR", "cache", "an absolute path"),
    ],
)
def test_a_value_without_meaning_is_refused(name: str, value: str, need: str) -> None:
    words = f"environment: {name}: got {value!r}, need {need}. Unset {name} for its default"
    with pytest.raises(CommUsageError, match=re.escape(words)):
        Settings.from_environment({name: value})


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({}, "~/.cache/dcp_comm"),
        ({"XDG_CACHE_HOME": "relative"}, "~/.cache/dcp_comm"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/dcp_comm"),
        ({"XDG_CACHE_HOME": "/x", "DCP_COMM_CACHE_DIR": "/y"}, "/y"),
    ],
)
def test_where_compiled_kernels_are_kept(environment: dict[str, str], folder: str) -> None:
    assert Settings.from_environment(environment).cache_dir == folder


def test_the_environment_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("0", "all"):
        monkeypatch.setenv("DCP_COMM_CHECK", check)
        assert Settings.from_environment().check == check
