"""run_ranks: every rank a thread over the fake backend."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
import torch.distributed as dist

from dcp_comm.backends.fake import FakeBackend, FakeControl
from dcp_comm.board import World
from dcp_comm.communicator import Communicator
from dcp_comm.deadline import Deadline, seconds
from dcp_comm.errors import CommArgumentError, CommPeerLost, CommTimeout, refusal
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.settings import Settings

T = TypeVar("T")

_GRACE_SECONDS = 2.0


def run_ranks(
    fn: Callable[..., T],
    size: int,
    *args: object,
    device: torch.device | str = "cpu",
    timeout: float = 60.0,
) -> list[T]:
    """Run ``fn(comm, *args)`` on ``size`` ranks at once and return each rank's result.

    Ranks are threads of this process with real data exchange; all are given the same arguments, and
    the caller's gradient and inference mode. Other thread-local modes of torch must be entered
    inside ``fn``.

    Args:
        fn: The rank's work; its communicator is closed when it returns.
        size: Number of ranks, from 1.
        args: What every rank's ``fn`` gets after its communicator.
        device: Where all ranks' tensors live; on CUDA the ranks share one GPU.
        timeout: Seconds that one call, and the whole run, may take.

    Returns:
        ``fn``'s results in rank order.

    Raises:
        BaseException: The first error that a rank raised by itself, not those of ranks that waited
            for it.
        CommTimeout: A rank did not end in time; names it.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise CommArgumentError(refusal("run_ranks", "size", repr(size), "a whole number from 1"))
    run: _Run[T] = _Run(size, torch.device(device), seconds(timeout, "run_ranks", "timeout"))
    threads = [
        threading.Thread(
            target=run.rank,
            args=(rank, lambda comm: fn(comm, *args)),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    run.join(threads)
    return [run.results[rank] for rank in range(size)]


class _Run(Generic[T]):
    """One call of run_ranks: its world, its results, its errors in the order they happened."""

    def __init__(self, size: int, device: torch.device, timeout: float) -> None:
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.size, self.device, self.timeout = size, device, timeout
        self.world, self.store = World(), dist.HashStore()
        self.settings = Settings.from_environment()
        self.deadline = Deadline(timeout)
        self.grad, self.inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.results: dict[int, T] = {}
        self.errors: list[BaseException] = []

    def rank(self, rank: int, work: Callable[[Communicator], T]) -> None:
        """The body of one rank's thread."""
        reason = "returned"
        try:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)
            with (
                torch.inference_mode(self.inference),
                torch.set_grad_enabled(self.grad),
                self._communicator(rank) as comm,
            ):
                self.results[rank] = work(comm)
        except BaseException as error:
            reason = f"raised {error!r}"
            error.add_note(f"raised on rank {rank} of {self.size}")
            self.errors.append(error)
        finally:
            self.world.leave(reason)

    def join(self, threads: list[threading.Thread]) -> None:
        """Wait for all ranks; raise the first error that was no peer's."""
        for thread in threads:
            thread.join(self.deadline.remaining() + _GRACE_SECONDS)
        late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
        if self.errors:
            # The waiters' errors are consequences, and may be noted before their cause.
            raise min(self.errors, key=lambda error: isinstance(error, CommPeerLost))
        if late:
            ranks = ", ".join(map(str, late))
            raise CommTimeout(f"run_ranks: rank {ranks} did not end within {self.timeout:g} s")

    def _communicator(self, rank: int) -> Communicator:
        meeting = Rendezvous(
            rank, self.size, self.store, "world", self.device, self.timeout, self.deadline
        )
        backend = FakeBackend(self.world, rank, self.size, "world", self.device)
        return Communicator(backend, FakeControl(backend), meeting, self.settings)
