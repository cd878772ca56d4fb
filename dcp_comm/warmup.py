"""A small and a large call of each kind, so that libraries connect before memory is profiled."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dcp_comm.communicator import Communicator

_SMALL_BYTES = 1024


def run(comm: "Communicator", max_bytes: int) -> None:
    """Make every kind of call on temporary tensors of up to ``max_bytes``; collective."""
    for num_bytes in sorted({min(_SMALL_BYTES, max_bytes), max_bytes}):
        block = -(-num_bytes // comm.size)
        whole = torch.zeros(comm.size * block, dtype=torch.uint8, device=comm.device)
        part = torch.zeros(block, dtype=torch.uint8, device=comm.device)
        comm.all_gather_into(whole, part)
        comm.all_to_all_into(torch.empty_like(whole), whole)
        comm.reduce_scatter_into(part, whole)
        comm.all_reduce(whole)
        comm.broadcast(whole, 0)
        if comm.size > 1:
            _around_the_ring(comm, part)


def _around_the_ring(comm: "Communicator", part: torch.Tensor) -> None:
    with comm.group():
        comm.send(part, (comm.rank + 1) % comm.size)
        comm.recv(torch.empty_like(part), (comm.rank - 1) % comm.size)
