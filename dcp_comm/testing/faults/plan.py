"""Which faults are armed, which have struck, and how they get into a rank's calls."""

import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch

from dcp_comm.backend import Backend
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import BackendUnavailable, CommArgumentError, CommUsageError, refusal
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.testing.faults.kinds import Fault, Swap


class FaultPlan:
    """Faults, which of them were armed, and which have been seen; one plan serves all ranks.

    Args:
        *faults: At most one a rank and call.
        witness: Told of each fault before it strikes: what a process that ends by it has to say.

    Raises:
        CommArgumentError: Two faults meet at one call.
    """

    def __init__(self, *faults: Fault, witness: Callable[[Fault], object] | None = None) -> None:
        self._faults = {(fault.rank, fault.call): fault for fault in faults}
        if len(self._faults) < len(faults):
            need = "at most one at each call of a rank"
            raise CommArgumentError(refusal("FaultPlan", "faults", f"{len(faults)}", need))
        self._lock, self._witness = threading.Lock(), witness
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
        faulty, issue = self.arm(channel.backend), channel.issue

        def mistaken(calls: Sequence[Call], stream: torch.cuda.Stream | None) -> None:
            issue(faulty.passing(calls), stream)

        channel.issue = mistaken  # type: ignore[method-assign]

    def into_backend(self, comm: Communicator) -> None:
        """Arm this rank: its calls are right, its backend is a `FaultyBackend`."""
        comm._channel.backend = FaultyBackend(comm._channel.backend, self)

    def arm(self, backend: Backend) -> "FaultyCalls":
        """Return what puts the faults of a backend's rank into its calls.

        Raises:
            CommUsageError: One of them would strike the process, and other ranks live in it.
        """
        armed = {fault for fault in self._faults.values() if fault.rank == backend.rank}
        shared = [fault for fault in armed if fault.whole_process]
        if shared and not backend.capabilities.processes:
            got, need = f"{shared[0]} over backend {backend.name}", "ranks that are processes"
            remedy = "Order Raise where ranks are threads of one process"
            raise CommUsageError(refusal("FaultPlan", "faults", got, need, remedy=remedy))
        with self._lock:
            self._armed |= armed
        return FaultyCalls(self, backend.rank, backend.size)

    def meet(self, rank: int, call: int) -> Fault | None:
        """Return the fault of one call, if there is one; it has been seen then."""
        fault = self._faults.get((rank, call))
        if fault is not None:
            with self._lock:
                self._seen |= {fault}
            if self._witness is not None:
                self._witness(fault)
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
        self._below, self._faulty = below, plan.arm(below)

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
