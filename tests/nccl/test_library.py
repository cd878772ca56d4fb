"""Which libnccl is taken, which paths are trusted, and that there is only one."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dcp_comm.errors import BackendUnavailable, CommUsageError
from dcp_comm.nccl import library
from dcp_comm.nccl.functions import Functions
from dcp_comm.nccl.library import VARIABLE, Found
from tests.nccl.conftest import Stub

MAPS = """\
7f1-7f2 r--p 00000000 fe:00 11    /opt/venv/lib/libtorch_cuda.so
7f2-7f3 r--p 00000000 fe:00 12    /opt/venv/nvidia/nccl/lib/libnccl.so.2
7f3-7f4 r-xp 00010000 fe:00 12    /opt/venv/nvidia/nccl/lib/libnccl.so.2
7f4-7f5 r-xp 00000000 fe:00 13    /usr/lib/libnccl-net.so
7f5-7f6 r-xp 00000000 00:00 0
7f6-7f7 r-xp 00000000 fe:00 14    /usr/lib/a b/libnccl.so.2.28.9 (deleted)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that may be loaded as far as its path goes."""
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"\x7fELF no more")
    path.chmod(0o755)
    return path


def test_the_order_of_the_search(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, variable, already loaded, wheel, cuda.pathfinder, system."""
    wheel, other = Found("/wheel", "nvidia-nccl-cu13 2.28.9"), Found("/toolkit", "cuda.pathfinder")
    monkeypatch.setattr(library, "_pathfinder", lambda: iter([other]))
    monkeypatch.setattr(library, "_wheels", lambda: iter([wheel]))
    monkeypatch.setattr(library, "loaded", lambda: ("/torch's",))
    monkeypatch.setenv(VARIABLE, str(file))
    asked = file.with_name("libnccl.so.3")
    asked.write_bytes(b"")
    assert library.find(str(asked)) == Found(str(asked), "argument")
    assert library.find() == Found(str(file), VARIABLE)
    monkeypatch.delenv(VARIABLE)
    assert library.find() == Found("/torch's", "already loaded")
    monkeypatch.setattr(library, "loaded", lambda: ())
    assert library.find() == wheel
    monkeypatch.setattr(library, "_wheels", lambda: iter(()))
    assert library.find() == other
    monkeypatch.setattr(library, "_pathfinder", lambda: iter(()))
    assert library.find() == Found("libnccl.so.2", "system")


def test_what_is_mapped_is_found_once_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plugins are not counted; a library that was replaced on disk still is."""
    (tmp_path / "maps").write_text(MAPS)
    monkeypatch.setattr(library, "_MAPS", tmp_path / "maps")
    paths = ("/opt/venv/nvidia/nccl/lib/libnccl.so.2", "/usr/lib/a b/libnccl.so.2.28.9")
    assert library.loaded() == paths


def test_two_libraries_are_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommUsageError, match=r"2 different libraries: /a, /b, need one.*TWO_NCCL"):
        library.unless_one(("/a", "/b"))
    library.unless_one(("/a",))
    library.unless_one(())
    monkeypatch.setenv("DCP_COMM_TWO_NCCL", "1")
    library.unless_one(("/a", "/b"))


def test_a_trusted_path_is_returned_without_links(file: Path) -> None:
    link = file.with_name("link.so")
    link.symlink_to(file)
    assert library.trusted(str(link), VARIABLE) == str(file)


def test_a_path_must_be_absolute(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv(VARIABLE, file.name)
    with pytest.raises(CommUsageError, match=f"{VARIABLE}: got 'libnccl.so.2', need an absolute"):
        library.find()


@pytest.mark.parametrize("name", ["", "missing.so"])
def test_a_path_must_be_a_regular_file(file: Path, name: str) -> None:
    with pytest.raises(CommUsageError, match=r"need (a shared library|an existing file)"):
        library.trusted(str(file.parent / name), VARIABLE)


@pytest.mark.parametrize("bit", [stat.S_IWOTH, stat.S_IWOTH | stat.S_IWGRP])
def test_nobody_else_may_be_able_to_change_it(file: Path, bit: int) -> None:
    file.chmod(0o755 | bit)
    with pytest.raises(CommUsageError, match="which others may write"):
        library.trusted(str(file), VARIABLE)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_it_must_belong_to_root_or_to_the_user(file: Path) -> None:
    os.chown(file, 4711, -1)
    with pytest.raises(CommUsageError, match="owned by user id 4711, need a file owned by root"):
        library.trusted(str(file), VARIABLE)
    os.chown(file, 0, 4711)
    file.chmod(0o775)
    with pytest.raises(CommUsageError, match="which others may write"):
        library.trusted(str(file), VARIABLE)


def test_what_the_loader_refuses_is_unavailable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(BackendUnavailable, match=rf"{file} \({VARIABLE}\).*Install nvidia-nccl"):
        Functions.load()


@pytest.mark.parametrize(
    ("version", "lacks", "since"),
    [(2408, "ncclCommInitRankConfig", "2.14.0"), (21003, "ncclCommInitRankConfig", "2.14.0")],
)
def test_an_old_nccl_is_refused_by_what_it_lacks(
    stub: Callable[[int], Stub], version: int, lacks: str, since: str
) -> None:
    path = stub(version).path
    words = rf"{lacks} needs NCCL >= {since}, found 2\.\d+\.\d+ at {path} \({VARIABLE}\)"
    with pytest.raises(BackendUnavailable, match=words):
        Functions.load()


@pytest.mark.parametrize(
    ("version", "has"),
    [
        (21403, set[str]()),
        (21803, {"ncclCommSplit"}),
        (22703, {"ncclCommSplit"}),
        (23003, {"ncclCommSplit", "ncclAlltoAll"}),
    ],
)
def test_what_can_be_done_another_way_may_be_missing(
    stub: Callable[[int], Stub], version: int, has: set[str]
) -> None:
    stub(version)
    functions = Functions.load()
    found = {name for name in ("ncclCommSplit", "ncclAlltoAll") if name in functions}
    assert found == has
    assert functions.version[:2] == (2, version // 100 % 100)


def test_a_library_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="no libnccl: it has no ncclGetVersion"):
        Functions(Found("libm.so.6", "system"))
