"""A whole life of two ranks, watched: what runs, who listens, what is written, what is said."""

import pytest

from tests.forks import forked
from tests.processes import Report, of_topic
from tests.security.ranks import CANARY, SECRET_FLOAT, SECRET_INTEGER

pytestmark = pytest.mark.xdist_group("processes")

LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


@pytest.fixture(scope="module")
def told() -> list[Report]:
    """Both ranks' reports."""
    secrets = {"HF_TOKEN": CANARY, "STORE_PASSWORD": CANARY, "GLOO_SOCKET_IFNAME": "lo"}
    with forked("tests.security.ranks:life", 2, DCP_COMM_CHECK="all", **secrets) as started:
        return [of_topic(process.rest(), "life") for process in started]


def test_nothing_that_came_in_is_run(told: list[Report]) -> None:
    """No class is looked up by an unpickler, no command is started."""
    for each in told:
        assert each["ran"] == []


def test_nobody_listens_on_every_interface(told: list[Report]) -> None:
    """As the kernel has it for all sockets of the process, torch's own among them."""
    for each in told:
        addresses = [listener.rpartition(":")[0] for listener in each["listening"]]
        assert addresses
        assert set(addresses) <= set(LOOPBACK), each["listening"]
    assert [len(each["bound"]) for each in told] == [1, 0]
    assert "127.0.0.1" in told[0]["bound"][0]


def test_no_file_is_readable_by_others(told: list[Report]) -> None:
    """Under a umask that forbids nothing."""
    for each in told:
        assert set(each["modes"].values()) <= {"0o600"}, each["modes"]


@pytest.mark.parametrize("secret", [CANARY, f"{SECRET_INTEGER}", "7654321", "7.654321", "7654e"])
def test_errors_and_logs_hold_no_secrets(told: list[Report], secret: str) -> None:
    """Not of the environment, not of the data."""
    assert f"{SECRET_FLOAT}".startswith("7654321")
    for each in told:
        assert len(each["said"]) > 20
        for words in each["said"]:
            assert secret not in words.replace(",", "").replace("_", "")


def test_errors_were_really_provoked(told: list[Report]) -> None:
    """Else there is nothing to look through."""
    words = "\n".join(told[0]["said"])
    for each in ("need", "not making the same call", "do not agree", "a peer is gone", "world: "):
        assert each in words
