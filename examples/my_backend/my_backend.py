"""A backend of one's own: bytes travel through queues in the store where the ranks met."""

import ctypes
from collections.abc import Sequence

import torch

from dcp_comm.backend import Backend, Capabilities
from dcp_comm.contract import Call, byte_view
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommPeerLost, CommTimeout
from dcp_comm.rendezvous import Rendezvous

REDUCE = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin", "avg": "mean"}


class MyBackend(Backend):
    """Slow, but honest: a call is messages between pairs of ranks, with a queue for each pair."""

    name, capabilities = "mine", Capabilities(devices=("cpu",))
    store: torch.distributed.Store

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> "MyBackend":
        """Join the others: their store is all that is needed."""
        backend = cls(rendezvous.rank, rendezvous.size, rendezvous.device)
        backend.store = rendezvous.store
        return backend

    def issue(self, calls: Sequence[Call], stream: object, deadline: Deadline) -> None:
        """Send everything first, as sends of one group may be mutual; then receive."""
        for call in calls:
            for peer in range(self.size) if call.collective else [call.peer] * (call.op == "send"):
                scatters = call.op in ("all_to_all_into", "reduce_scatter_into")
                blocks = byte_view(call.input).view(self.size if scatters else 1, -1)
                raw = blocks[peer if scatters else 0]
                queue = f"{call.collective} {self.rank} to {peer}"
                self.store.queue_push(queue, ctypes.string_at(raw.data_ptr(), len(raw)))
        for call in calls:
            peers = range(self.size) if call.collective else [call.peer] * (call.op == "recv")
            parts = [self._receive(call, peer, deadline) for peer in peers]
            if call.reduce:
                numbers = torch.stack(parts).view(call.output.dtype)
                call.output.copy_(getattr(numbers, REDUCE[call.reduce])(0).view(call.output.shape))
            elif parts:
                joined = parts[call.peer] if call.op == "broadcast" else torch.cat(parts)
                byte_view(call.output).copy_(joined)

    def _receive(self, call: Call, peer: int, deadline: Deadline) -> torch.Tensor:
        queue, gone = f"{call.collective} {peer} to {self.rank}", f"gone {peer}"
        if not deadline.poll(lambda: self.store.check([queue]) or self.store.check([gone])):
            raise CommTimeout(f"{call}: rank {peer} sent nothing within {deadline.timeout:g} s")
        if not self.store.check([queue]):
            raise CommPeerLost(f"{call}: rank {peer} has left")
        return torch.frombuffer(bytearray(self.store.queue_pop(queue)), dtype=torch.uint8)

    def close(self, deadline: Deadline) -> None:
        """Tell those who still wait."""
        self.store.set(f"gone {self.rank}", "")
