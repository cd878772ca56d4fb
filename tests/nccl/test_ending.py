"""How communicators end when NCCL does not want them to."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dcp_comm.backends.pynccl import PyNcclBackend
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommClosed, CommTimeout
from dcp_comm.latch import Latch
from dcp_comm.nccl.life import Handover, run_on_device
from tests.nccl.conftest import PATIENCE, Stream, Stub, meeting


def connect(gpu: torch.device) -> PyNcclBackend:
    """Rank 0 of 2."""
    return PyNcclBackend.connect(meeting(gpu))


def send(backend: PyNcclBackend, *, done: bool = True) -> None:
    """Make a call whose work on the GPU is done, or never will be."""
    stream, tensor = Stream(), torch.zeros(4)
    stream.stuck_after = stream.stuck_after if done else 0
    call = Call("send", tensor, tensor, peer=1)
    backend.issue([call], stream, Deadline(1.0))  # type: ignore[arg-type]


def endings(library: Stub) -> list[str]:
    """Which of the two functions that end a communicator were called."""
    return [name for name in library.names if name in ("ncclCommDestroy", "ncclCommAbort")]


def test_a_destroy_that_hangs_is_left_to_its_thread(
    stub: Callable[[int], Stub], gpu: torch.device
) -> None:
    """As with a captured graph: close returns in time, says why, and aborts nothing."""
    library = stub(22809)
    backend = connect(gpu)
    library.hang("ncclCommDestroy")
    started = time.monotonic()
    with pytest.raises(CommTimeout, match=r"NCCL holds on after 0\.5 s: work is stuck"):
        backend.close(Deadline(0.5))
    assert 0.5 <= time.monotonic() - started < PATIENCE
    library.release()
    assert backend._ending.wait(Deadline(PATIENCE))
    assert endings(library) == ["ncclCommDestroy"]


def test_captured_calls_are_named_as_what_holds_it(
    stub: Callable[[int], Stub], gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = stub(22809)
    backend = connect(gpu)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    send(backend)
    library.hang("ncclCommDestroy")
    with pytest.raises(CommTimeout, match=r"a CUDA graph that holds them is alive\. Delete it"):
        backend.close(Deadline(0.3))


def test_work_that_does_not_end_is_aborted_before_the_timeout(
    stub: Callable[[int], Stub], gpu: torch.device
) -> None:
    library = stub(22809)
    backend = connect(gpu)
    send(backend, done=False)
    started = time.monotonic()
    backend.close(Deadline(2.0))
    assert time.monotonic() - started > 1.5
    assert endings(library) == ["ncclCommAbort"]


def test_an_abort_that_hangs_holds_nobody_up(
    stub: Callable[[int], Stub], gpu: torch.device
) -> None:
    library = stub(22809)
    backend = connect(gpu)
    library.hang("ncclCommAbort")
    started = time.monotonic()
    backend.abort()
    backend.abort()
    backend.close(Deadline(2 * PATIENCE))
    assert time.monotonic() - started < PATIENCE
    assert Deadline(PATIENCE).poll(lambda: endings(library) == ["ncclCommAbort"])


def test_a_communicator_with_parts_is_destroyed_instead_of_aborted(
    stub: Callable[[int], Stub], gpu: torch.device
) -> None:
    """Aborting it would take those along with which it shares its resources."""
    library = stub(22809)
    backend = connect(gpu)
    backend.split(None, ())
    backend.abort()
    assert Deadline(PATIENCE).poll(lambda: endings(library) == ["ncclCommDestroy"])


def test_a_communicator_with_parts_is_aborted_after_a_second_if_work_is_stuck(
    stub: Callable[[int], Stub], gpu: torch.device
) -> None:
    library = stub(22809)
    backend = connect(gpu)
    backend.split(None, ())
    send(backend, done=False)
    backend.abort()
    assert Deadline(PATIENCE).poll(lambda: endings(library) == ["ncclCommAbort"])


def test_nothing_is_destroyed_under_a_call(stub: Callable[[int], Stub], gpu: torch.device) -> None:
    """Close from another thread waits for the call, and aborts if that does not return."""
    library = stub(22809)
    backend = connect(gpu)
    library.hang("ncclSend")
    caller = threading.Thread(target=send, args=(backend,), daemon=True)
    caller.start()
    assert Deadline(PATIENCE).poll(lambda: library.names[-1] == "ncclSend")
    backend.close(Deadline(3.0))
    assert endings(library) == ["ncclCommAbort"]
    library.release()
    caller.join(PATIENCE)
    assert not caller.is_alive()
    assert endings(library) == ["ncclCommAbort"]


class Made:
    """A communicator that counts how often it is aborted."""

    def __init__(self) -> None:
        self.aborts = 0

    def abort(self) -> int:
        self.aborts += 1
        return 0


def test_whoever_comes_second_ends_what_nobody_takes() -> None:
    made = Made()
    early, late = Handover[Any](), Handover[Any]()
    assert early.offer(made)
    assert early.withdraw() is made
    assert late.withdraw() is None
    assert not late.offer(made)


@pytest.mark.parametrize("wait", [0.0, 0.2])
def test_a_communicator_that_comes_when_nobody_waits_is_aborted_once(
    gpu: torch.device, wait: float
) -> None:
    """Before and after the waiter is told that the whole communicator was closed."""
    latch, made = Latch(), Made()

    def make() -> Any:
        latch.fail(CommClosed("closed"))
        time.sleep(wait)
        return made

    with pytest.raises(CommClosed):
        # A wait that always finds the communicator missing once, however fast it was made.
        run_on_device(make, gpu, Impatient(PATIENCE, latch), "making")
    assert Deadline(PATIENCE).poll(lambda: made.aborts == 1)
    time.sleep(0.1)
    assert made.aborts == 1


class Impatient(Deadline):
    """Looks at the latch again after what it waited for has come."""

    def poll(self, done: Callable[[], bool]) -> bool:
        found = super().poll(done)
        self.interrupt()
        return found
