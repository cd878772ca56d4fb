"""The control plane: small fixed-size records between all ranks, never over the data's way.

Agreement and fingerprints travel here, so that ranks that are about to do different things find
out with their processes alive and nothing written.
"""

from abc import ABC, abstractmethod
from typing import Self

import torch
import torch.distributed as dist

from dcp_comm import gloo
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommClosed
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.roll import Roll


class Control(ABC):
    """All-gather of one record a rank, in rank order; records of one exchange have one length.

    Attributes:
        roll: Where ranks that wait or fail leave word; None where peers need none to be named.
    """

    roll: Roll | None = None

    @classmethod
    @abstractmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Join the ranks of a rendezvous, within its deadline.

        Raises:
            CommTimeout: Not all ranks came.
        """

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> "Control | None":
        """Make the control plane of some of the ranks; every rank calls, outsiders with None."""
        return None if child is None else type(self).connect(child)

    @abstractmethod
    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        """Give this rank's record, get all ranks'; bounded by the deadline.

        Raises:
            CommTimeout: A rank did not come.
            CommPeerLost: A rank is gone.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections; never waits."""


class SoloControl(Control):
    """The control plane of one rank alone."""

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Stand alone."""
        return cls()

    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        """Return the record itself."""
        return [record]

    def close(self) -> None:
        """Nothing to let go of."""


class GlooControl(Control):
    """Records over a gloo group of their own: a dead peer shows at once, sizes never differ."""

    def __init__(self, group: dist.ProcessGroup, roll: Roll) -> None:
        self._group: dist.ProcessGroup | None = group
        self._size, self.roll = group.size(), roll

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Connect a group of its own over the rendezvous' store."""
        return cls(gloo.connect(rendezvous, "control"), Roll.at(rendezvous, "calls"))

    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        """All-gather over gloo, waiting by polls."""
        if self._group is None:
            raise CommClosed("control exchange: the communicator was closed")
        mine = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        slots = [torch.empty_like(mine) for _ in range(self._size)]
        work = self._group.allgather([slots], [mine])
        with gloo.outliving(self._group, [work]):
            gloo.finish(work, deadline, "control exchange")
        return [bytes(slot.tolist()) for slot in slots]

    def close(self) -> None:
        """Drop the group; its connections close with it."""
        self._group = None
