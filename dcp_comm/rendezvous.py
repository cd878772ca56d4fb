"""Rendezvous: where the ranks of one communicator meet."""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from dcp_comm.deadline import Deadline


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one communicator meet.

    Backends and control planes are connected with it.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        store: A store that all of them, and for all purposes only they, use; its keys are not
            authenticated: check what comes out of it.
        name: The communicator's name, the same on every rank.
        device: Where this rank's tensors live.
        timeout: Seconds that one call may wait for peers.
        deadline: Until when connecting may take.
        group: The application's own process group that this communicator rides on, if any.
        options: What the backend was asked for, of its ``options_type``; None for its defaults.
        processes: What `dcp_comm.processes.own_process` says on each rank; empty if not known.
    """

    rank: int
    size: int
    store: dist.Store
    name: str
    device: torch.device
    timeout: float
    deadline: Deadline
    group: dist.ProcessGroup | None = None
    options: object | None = None
    processes: tuple[str, ...] = ()

    def child(self, name: str, members: tuple[int, ...], deadline: Deadline) -> "Rendezvous":
        """The meeting point of some of these ranks, under a name that only they share.

        Args:
            name: No other part's.
            members: Their ranks here, in their order there; this rank among them.
            deadline: Until when connecting may take.
        """
        return replace(
            self,
            name=name,
            rank=members.index(self.rank),
            size=len(members),
            store=dist.PrefixStore(name, self.store),
            deadline=deadline,
            group=None,
            processes=tuple(self.processes[rank] for rank in members) if self.processes else (),
        )
