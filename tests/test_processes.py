"""Who notices the end of a process, and whose."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dcp_comm.deadline import Deadline
from dcp_comm.processes import Processes, own_process

HERE = own_process().rpartition("/")[0]


@pytest.fixture
def peer() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is told to go."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_a_process_is_named_by_system_namespace_and_id() -> None:
    assert own_process().endswith(f"/{os.getpid()}")
    assert "pid:[" in HERE


def test_the_end_of_a_peer_shows_and_stays(peer: subprocess.Popen[bytes]) -> None:
    """Before anybody has waited for it, and though it ends well."""
    processes = Processes(["", "", f"{HERE}/{peer.pid}"], 0)
    assert processes.ended() is None
    peer.communicate(b"\n", timeout=10)
    assert Deadline(5.0).poll(lambda: processes.ended() == 2)
    assert processes.ended() == 2
    processes.close()
    assert processes.ended() is None


def test_this_process_other_systems_and_nonsense_are_not_looked_at(
    peer: subprocess.Popen[bytes],
) -> None:
    number = peer.pid
    names = [own_process(), f"other/pid:[1]/{number}", "", f"{HERE}/x", f"{HERE}/{10**30}"]
    processes = Processes(names, 0)
    peer.kill()
    peer.wait()
    assert processes.ended() is None
    processes.close()


def test_nothing_is_left_open(peer: subprocess.Popen[bytes]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    processes = Processes([f"{HERE}/{peer.pid}"] * 3, 0)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    processes.close()
    processes.close()
    assert len(os.listdir("/proc/self/fd")) == before
