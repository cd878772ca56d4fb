"""What the watch over a communicator notices, and that it then sets waiting streams free."""

import subprocess
import sys
import time

import pytest
import torch

from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommPeerLost, CommTimeout
from dcp_comm.nccl import life
from dcp_comm.processes import own_process
from tests.nccl.conftest import Connect, Stream, issue


def test_work_that_is_late_on_the_gpu_aborts(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch marks the work, sees it pending past the timeout, and sets the stream free."""
    backend, library = connect(timeout=0.3)
    stream, tensor = Stream(), torch.zeros(4)
    stream.event.done = False
    backend.issue([Call("all_reduce", tensor, tensor, reduce="sum")], stream, Deadline(0.5))  # type: ignore[arg-type]
    assert Deadline(5.0).poll(lambda: library.names[-1] == "ncclCommAbort")
    with pytest.raises(CommTimeout, match=r"not finished within 0\.3 s on the GPU"):
        issue(backend, Call("all_reduce", tensor, tensor, reduce="sum"))
    with pytest.raises(CommTimeout):
        backend.check()
    backend.close(Deadline(1.0))
    assert library.names.count("ncclCommAbort") == 1
    assert "ncclCommDestroy" not in library.names


def test_the_last_of_many_calls_is_watched_too(connect: Connect) -> None:
    """It is made while an earlier mark is on its way, and no call follows that could mark it."""
    backend, library = connect(timeout=0.4)
    first, last, tensor = Stream(), Stream(), torch.zeros(4)
    first.event.done = last.event.done = False
    call = Call("send", tensor, tensor, peer=1)
    backend.issue([call], first, Deadline(0.5))  # type: ignore[arg-type]
    assert Deadline(5.0).poll(lambda: first.recorded == 1)
    backend.issue([call], last, Deadline(0.5))  # type: ignore[arg-type]
    first.event.done = True
    assert Deadline(5.0).poll(lambda: last.recorded == 1)
    assert Deadline(5.0).poll(lambda: library.names[-1] == "ncclCommAbort")


def test_work_that_ends_in_time_is_no_concern(connect: Connect) -> None:
    backend, library = connect(timeout=0.3)
    stream, tensor = Stream(), torch.zeros(4)
    for turn in range(1, 4):
        backend.issue([Call("send", tensor, tensor, peer=1)], stream, Deadline(0.5))  # type: ignore[arg-type]
        assert Deadline(5.0).poll(lambda turn=turn: stream.recorded == turn)  # type: ignore[misc]
    backend.check()
    assert "ncclCommAbort" not in library.names


def test_a_stream_that_is_being_captured_is_not_marked(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the mark of a capture that began meanwhile ever asked for."""
    backend, _ = connect(timeout=0.2)
    answers = iter([False, True, *[True] * 100])
    monkeypatch.setattr(life, "captures", lambda stream: next(answers))
    stream, tensor = Stream(), torch.zeros(4)
    stream.event.done = False
    for _ in range(3):
        backend.issue([Call("send", tensor, tensor, peer=1)], stream, Deadline(0.5))  # type: ignore[arg-type]
        time.sleep(0.25)
    backend.check()
    assert stream.recorded == 1


def test_an_asynchronous_error_aborts_without_being_asked_for(connect: Connect) -> None:
    """So that a host which waits for the stream is set free."""
    backend, library = connect()
    library.report(6)
    assert Deadline(5.0).poll(lambda: library.names[-1] == "ncclCommAbort")
    with pytest.raises(CommPeerLost, match="NCCL noticed: NCCL result 6"):
        backend.check()


def test_a_peer_whose_process_ends_is_lost(connect: Connect) -> None:
    """Its death breaks no connection where ranks meet in memory."""
    peer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    names = (own_process(), f"{own_process().rpartition('/')[0]}/{peer.pid}")
    backend, library = connect(processes=names)
    time.sleep(0.3)
    backend.check()
    peer.kill()
    assert Deadline(5.0).poll(lambda: library.names[-1] == "ncclCommAbort")
    with pytest.raises(CommPeerLost, match="the process of rank 1 has ended"):
        backend.check()
    peer.wait()


def test_a_call_that_holds_the_host_is_aborted(connect: Connect) -> None:
    """As lazy connecting does while a peer is missing."""
    backend, library = connect(timeout=0.3)
    library.hang("ncclAllReduce")
    tensor = torch.zeros(4)
    call = Call("all_reduce", tensor, tensor, reduce="sum")
    with pytest.raises(CommTimeout):
        Deadline(0.1).run(lambda: issue(backend, call), "a thread")
    assert Deadline(5.0).poll(lambda: library.names[-1] == "ncclCommAbort")
    with pytest.raises(CommTimeout, match="on the host: peers did not connect"):
        backend.check()
    library.release()
