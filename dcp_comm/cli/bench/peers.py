"""One rank's own work without its peers: what they send is there already, and stays.

The ranks, threads of one process, merge once for real. Then the others leave; the first rank's
exchanges become nothing, and its buffers still hold what came. So one device times the local part
of any strategy and any number of ranks through the interface that everybody uses.
"""

from collections.abc import Callable, Sequence

import torch

from dcp_comm.backend import Backend, Capabilities
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call
from dcp_comm.control import Control
from dcp_comm.deadline import Deadline
from dcp_comm.errors import BackendUnavailable
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.testing import run_ranks

_SECONDS = 3600.0


def without_peers(
    size: int, device: torch.device, merge: Callable[[Communicator], Callable[[], None]]
) -> None:
    """Run ``merge(comm)`` on every rank, then on the first what it returned, alone.

    Args:
        size: Number of ranks.
        device: Of all of them.
        merge: Collective. What it returns may repeat the same calls.
    """

    def rank(comm: Communicator) -> None:
        alone = merge(comm)
        comm.barrier()
        if comm.rank == 0:
            channel = comm._channel
            channel.backend, channel.control = _Silence(comm), _Echo(comm.size)
            alone()

    run_ranks(rank, size, device=device, timeout=_SECONDS)


class _Silence(Backend):
    """Moves nothing."""

    name = "silence"
    capabilities = Capabilities(devices=("cpu", "cuda"), capturable=True, processes=False)

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm.rank, comm.size, comm.device)

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> "_Silence":
        """Refuse: it replaces another backend."""
        raise BackendUnavailable("backend silence: made by bench alone")

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        """Leave everything as it is."""

    def close(self, deadline: Deadline) -> None:
        """Nothing of its own."""


class _Echo(Control):
    """Every rank says what this one says."""

    def __init__(self, size: int) -> None:
        self._size = size

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> "_Echo":
        """Refuse, as the backend does."""
        raise BackendUnavailable("backend silence: made by bench alone")

    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        """Return the record from every rank."""
        return [record] * self._size

    def close(self) -> None:
        """Nothing of its own."""
