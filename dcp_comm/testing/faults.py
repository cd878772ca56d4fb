"""Faults to order: what goes wrong at one call of one rank, in its program or in its backend.

    plan = FaultPlan(Drop(rank=1, call=2), Delay(rank=0, call=0, seconds=0.1))

    def fn(comm):
        plan.into_backend(comm)
        ...

    run_ranks(fn, 2)
    assert plan.seen == plan.armed

What a program does wrong (`FaultPlan.into_program`) comes before the ranks compare their calls, as
far as ``DCP_COMM_CHECK`` has them do so. What goes wrong in a backend comes after that.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from dcp_comm.backend import Backend
from dcp_comm.checks import check_int
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import BackendUnavailable, CommArgumentError, refusal
from dcp_comm.rendezvous import Rendezvous

_SAME_WIDTH = {
    1: (torch.uint8, torch.int8),
    2: (torch.float16, torch.bfloat16),
    4: (torch.float32, torch.int32),
    8: (torch.float64, torch.int64),
}


@dataclass(frozen=True)
class Fault(ABC):
    """What goes wrong once.

    Attributes:
        rank: On which rank of the communicator.
        call: At which of its calls, the first after arming being 0; those of a group count singly.
            Calls that move nothing never reach a backend, and are not counted there.

    Raises:
        CommArgumentError: A number is no int from 0 on.
    """

    rank: int
    call: int

    def __post_init__(self) -> None:
        for name in ("rank", "call"):
            check_int(type(self).__name__, name, getattr(self, name), 0)

    @abstractmethod
    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Return what becomes of the call, among ``size`` ranks."""


@dataclass(frozen=True)
class Raise(Fault):
    """An error instead of the call."""

    error: type[BaseException] = MemoryError

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Raise it."""
        raise self.error(f"ordered for rank {self.rank}, call {self.call}: {call}")


@dataclass(frozen=True)
class Delay(Fault):
    """The call comes late, by so many seconds."""

    seconds: float

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Sleep first."""
        time.sleep(self.seconds)
        return (call,)


class Drop(Fault):
    """The call is not made, and seems to be done."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Make none."""
        return ()


class Swap(Fault):
    """The call is made after the next one, and seems to be done before."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Make none now; who counts the calls keeps it."""
        return ()


class WrongShape(Fault):
    """The call is about half of every block."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Cut its tensors."""
        blocks = size if call.op == "all_to_all_into" else 1
        block = max(1, min(call.input.numel(), call.output.numel()) // blocks)

        def cut(tensor: Tensor) -> Tensor:
            return tensor.reshape(-1)[: tensor.numel() // block * (block // 2)]

        return (replace(call, input=cut(call.input), output=cut(call.output)),)


class WrongDtype(Fault):
    """The call is about the same bytes as another dtype, of the same width where there is one."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """View its tensors."""
        legal = _SAME_WIDTH.get(call.input.itemsize, (torch.uint8,))
        other = next(dtype for dtype in legal if dtype != call.input.dtype)
        input, output = (each.reshape(-1).view(other) for each in (call.input, call.output))
        return (replace(call, input=input, output=output),)


class FaultPlan:
    """Faults, which of them were armed, and which have been seen; one plan serves all ranks.

    Args:
        *faults: At most one a rank and call.

    Raises:
        CommArgumentError: Two faults meet at one call.
    """

    def __init__(self, *faults: Fault) -> None:
        self._faults = {(fault.rank, fault.call): fault for fault in faults}
        if len(self._faults) < len(faults):
            need = "at most one at each call of a rank"
            raise CommArgumentError(refusal("FaultPlan", "faults", f"{len(faults)}", need))
        self._lock = threading.Lock()
        self._armed, self._seen = frozenset[Fault](), frozenset[Fault]()

    @property
    def armed(self) -> frozenset[Fault]:
        """Faults of the ranks that were armed, in this process."""
        return self._armed

    @property
    def seen(self) -> frozenset[Fault]:
        """Faults that have struck, in this process."""
        return self._seen

    def into_program(self, comm: Communicator) -> None:
        """Arm this rank: it makes wrong calls, and a comparison of calls sees them."""
        channel = comm._channel
        faulty, issue = self.arm(comm.rank, comm.size), channel.issue

        def mistaken(calls: Sequence[Call], stream: torch.cuda.Stream | None) -> None:
            issue(faulty.passing(calls), stream)

        channel.issue = mistaken  # type: ignore[method-assign]

    def into_backend(self, comm: Communicator) -> None:
        """Arm this rank: its calls are right, its backend is a `FaultyBackend`."""
        comm._channel.backend = FaultyBackend(comm._channel.backend, self)

    def arm(self, rank: int, size: int) -> "FaultyCalls":
        """Return what puts one rank's faults into its calls."""
        with self._lock:
            self._armed |= {fault for fault in self._faults.values() if fault.rank == rank}
        return FaultyCalls(self, rank, size)

    def meet(self, rank: int, call: int) -> Fault | None:
        """Return the fault of one call, if there is one; it has been seen then."""
        fault = self._faults.get((rank, call))
        if fault is not None:
            with self._lock:
                self._seen |= {fault}
        return fault


class FaultyCalls:
    """One rank's calls on their way, counted, and met by their faults."""

    def __init__(self, plan: FaultPlan, rank: int, size: int) -> None:
        self._plan, self._rank, self._size = plan, rank, size
        self._count, self._held = 0, list[Call]()

    def passing(self, calls: Sequence[Call]) -> list[Call]:
        """Return what is made instead of these calls."""
        made: list[Call] = []
        for call in calls:
            fault = self._plan.meet(self._rank, self._count)
            self._count += 1
            if isinstance(fault, Swap):
                self._held.append(call)
            else:
                made += (call,) if fault is None else fault.strike(call, self._size)
                made += self._held
                self._held.clear()
        return made


class FaultyBackend(Backend):
    """Any backend, with one rank's faults in front of it; parts of the ranks are without.

    Args:
        below: Moves the bytes of what is left of the calls.
        plan: Armed for the backend's rank.
    """

    name: ClassVar[str] = "faulty"

    def __init__(self, below: Backend, plan: FaultPlan) -> None:
        super().__init__(below.rank, below.size, below.device)
        self.name = below.name  # type: ignore[misc]
        self.capabilities = below.capabilities  # type: ignore[misc]
        self._below, self._faulty = below, plan.arm(below.rank, below.size)

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Refuse: there is nothing below yet."""
        raise BackendUnavailable("faults: wrap a backend that is connected: FaultyBackend(b, plan)")

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        """Issue what the faults have left."""
        made = [call for call in self._faulty.passing(calls) if not call.empty]
        if made:
            self._below.issue(made, stream, deadline)

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> Backend | None:
        """Split what is below."""
        return self._below.split(child, members)

    def check(self) -> None:
        """Check what is below."""
        self._below.check()

    def abort(self) -> None:
        """Abort what is below."""
        self._below.abort()

    def close(self, deadline: Deadline) -> None:
        """Close what is below."""
        self._below.close(deadline)
