"""What the watch over a communicator notices, and that it then sets waiting streams free."""

import os
import re
import subprocess
import sys
import threading
from itertools import chain, repeat

import pytest
import torch
import torch.distributed as dist

from dcp_comm.backends.pynccl import PyNcclBackend
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout
from dcp_comm.nccl import watch
from dcp_comm.processes import own_process
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.roll import WAITS, Roll
from tests.nccl.conftest import PATIENCE, Clock, Connect, Stream

TIMEOUT = 5.0


def send(backend: PyNcclBackend, stream: Stream) -> None:
    """Make a call on a stream that may be stuck."""
    tensor = torch.zeros(4)
    call = Call("send", tensor, tensor, peer=1)
    backend.issue([call], stream, Deadline(0.5))  # type: ignore[arg-type]


def reduce(backend: PyNcclBackend, stream: Stream) -> None:
    """Make a call that every rank makes."""
    tensor = torch.zeros(4)
    call = Call("all_reduce", tensor, tensor, reduce="sum")
    backend.issue([call], stream, Deadline(0.5))  # type: ignore[arg-type]


def test_work_that_is_late_on_the_gpu_aborts(
    connect: Connect, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The watch marks the work, sees it pending past the timeout, and sets the stream free."""
    backend, library = connect(timeout=TIMEOUT)
    stream = Stream(stuck_after=1)
    reduce(backend, stream)
    library.looked()
    clock.now += TIMEOUT - 0.1
    library.looked()
    backend.check()
    clock.now += 0.2
    assert library.aborted()
    words = r"all_reduce: call 1 was not finished within 5 s on the GPU.*; rank 1 did not come"
    with pytest.raises(CommTimeout, match=words):
        reduce(backend, stream)
    with pytest.raises(CommTimeout):
        backend.check()
    assert re.search(words + r" \(rank 0 of 2, backend pynccl, communicator 'w'\)", caplog.text)
    backend.close(Deadline(1.0))
    assert library.names.count("ncclCommAbort") == 1
    assert "ncclCommDestroy" not in library.names


def test_the_last_of_many_calls_is_watched_too(connect: Connect, clock: Clock) -> None:
    """It is made while an earlier mark is on its way, and no call follows that could mark it."""
    backend, library = connect(timeout=TIMEOUT)
    first, last = Stream(stuck_after=1), Stream(stuck_after=0)
    send(backend, first)
    send(backend, last)
    assert (first.recorded, last.recorded) == (2, 0)
    first.stuck_after = 2
    assert Deadline(PATIENCE).poll(lambda: last.recorded == 1)
    clock.now += TIMEOUT + 0.1
    assert library.aborted()


def test_work_that_ends_in_time_is_no_concern(connect: Connect, clock: Clock) -> None:
    backend, library = connect(timeout=TIMEOUT)
    stream = Stream()
    for _ in range(3):
        before = stream.recorded
        send(backend, stream)
        assert Deadline(PATIENCE).poll(lambda before=before: stream.recorded > before)  # type: ignore[misc]
        library.looked()
        clock.now += 2 * TIMEOUT
        library.looked()
    backend.check()
    assert "ncclCommAbort" not in library.names


def test_what_was_on_the_stream_before_a_call_does_not_count(
    connect: Connect, clock: Clock
) -> None:
    """However long it takes; the time of the call runs from when it has passed."""
    backend, library = connect(timeout=TIMEOUT)
    stream = Stream(stuck_after=0)
    send(backend, stream)
    library.looked()
    clock.now += 10 * TIMEOUT
    library.looked()
    stream.stuck_after = 1
    library.looked()
    clock.now += TIMEOUT - 0.1
    library.looked()
    backend.check()
    clock.now += 0.2
    assert library.aborted()


def test_ranks_that_wait_for_other_calls_are_a_mismatch_before_time_is_up(
    connect: Connect, clock: Clock
) -> None:
    """What the other rank left on the roll, as its own watch does."""
    store = dist.HashStore()
    backend, library = connect(timeout=20.0, store=store)
    other = Roll.at(Rendezvous(1, 2, store, "w", backend.device, 20.0, Deadline(20.0)), "gpu")
    other.say(WAITS, 1, "broadcast")
    reduce(backend, Stream(stuck_after=1))
    library.looked()
    clock.now += 1.0
    assert library.aborted()
    with pytest.raises(CommMismatch, match=r"rank 0: call 1: all_reduce\n  rank 1: call 1: bro"):
        backend.check()


def test_who_stops_a_watch_in_a_forked_child_waits_for_nothing(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, library = connect()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        backend._watch.stop()
    library.looked()


def test_a_watch_that_is_stuck_keeps_the_handle_from_being_destroyed(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is aborted instead, after a moment; what the watch holds is closed by itself, later."""
    backend, library = connect()
    held, inside = threading.Event(), threading.Event()

    def stuck() -> int:
        inside.set()
        held.wait(10 * PATIENCE)
        return 0

    monkeypatch.setattr(backend._watch._handle, "async_error", stuck)
    assert inside.wait(PATIENCE)
    backend.close(Deadline(PATIENCE))
    ends = [name for name in library.names if name in ("ncclCommAbort", "ncclCommDestroy")]
    assert ends == ["ncclCommAbort"]
    held.set()
    assert backend._watch.is_quiet(PATIENCE)


def test_a_stream_that_is_being_captured_is_not_marked(
    connect: Connect, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the mark of a capture that began meanwhile ever asked for."""
    backend, library = connect(timeout=TIMEOUT)
    answers = chain([False], repeat(True))
    monkeypatch.setattr(watch, "captures", lambda stream: next(answers))
    stream = Stream(stuck_after=0)
    for _ in range(3):
        send(backend, stream)
        library.looked()
        clock.now += 2 * TIMEOUT
        library.looked()
    backend.check()
    assert stream.recorded == 1


def test_an_asynchronous_error_aborts_without_being_asked_for(connect: Connect) -> None:
    """So that a host which waits for the stream is set free."""
    backend, library = connect()
    library.report(6)
    assert library.aborted()
    with pytest.raises(CommPeerLost, match="NCCL noticed: NCCL result 6"):
        backend.check()


def test_a_peer_whose_process_ends_is_lost(connect: Connect) -> None:
    """Its death breaks no connection where ranks meet in memory."""
    peer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    names = (own_process(), f"{own_process().rpartition('/')[0]}/{peer.pid}")
    backend, library = connect(processes=names)
    library.looked()
    backend.check()
    peer.kill()
    assert library.aborted()
    with pytest.raises(CommPeerLost, match="the process of rank 1 has ended"):
        backend.check()
    peer.wait()


def test_a_call_that_holds_the_host_is_aborted(connect: Connect, clock: Clock) -> None:
    """As lazy connecting does while a peer is missing."""
    backend, library = connect(timeout=TIMEOUT)
    library.hang("ncclAllReduce")
    caller = threading.Thread(target=reduce, args=(backend, Stream()), daemon=True)
    caller.start()
    assert Deadline(PATIENCE).poll(lambda: library.names[-1] == "ncclAllReduce")
    library.looked()
    backend.check()
    clock.now += TIMEOUT + 0.1
    assert library.aborted()
    with pytest.raises(CommTimeout, match=r"all_reduce: call 1 .* on the host: peers did not"):
        backend.check()
    library.release()
    caller.join(PATIENCE)
