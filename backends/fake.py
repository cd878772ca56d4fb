"""Backend "fake": the ranks are threads of one process, and the data really moves.

It gives what no real backend does: a call that does not match its peers raises on every rank naming
both sides, a rank that ends while others wait raises in the waiters at once, and a rank that does
not come is named when time is up. It never casts and writes to nothing but outputs.

Made by `dcp_comm.testing.run_ranks`, one `World` a run.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import ClassVar, Self

import torch

from dcp_comm.backend import Backend, Capabilities, copy_bytes, on_stream
from dcp_comm.board import Ticket, World
from dcp_comm.contract import Call
from dcp_comm.control import Control
from dcp_comm.deadline import Deadline
from dcp_comm.errors import BackendUnavailable
from dcp_comm.rendezvous import Rendezvous

_COMBINE = {"prod": torch.mul, "max": torch.maximum, "min": torch.minimum}


class FakeBackend(Backend):
    """One rank's side of a board."""

    name: ClassVar[str] = "fake"
    capabilities: ClassVar[Capabilities] = Capabilities(devices=("cpu", "cuda"), processes=False)

    def __init__(self, world: World, rank: int, size: int, name: str, device: torch.device) -> None:
        super().__init__(rank, size, device)
        self.world = world
        self.board = world.sit(name, rank, size)

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Refuse: ranks that are processes cannot share a board."""
        raise BackendUnavailable(
            "backend fake: its ranks are threads of one process. Use dcp_comm.testing.run_ranks"
        )

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> "FakeBackend | None":
        """Share a board of the child's name with the other members."""
        if child is None:
            return None
        return FakeBackend(self.world, child.rank, child.size, child.name, self.device)

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        """Post all calls, run each once it is matched, return when peers are done reading."""
        with on_stream(stream):
            tickets = [Ticket(self.rank, call, self._event()) for call in calls]
            self.board.post(self.rank, tickets)
            after = [self._run(ticket, deadline) for ticket in tickets]
            for ticket, write in zip(tickets, after, strict=True):
                self.board.wait(ticket, "run_by_all", deadline)
                self._join(each.finished for each in ticket.peers.values())
                write()
        for ticket in tickets:
            ticket.forget()

    def abort(self) -> None:
        """Let waiting peers know at once."""
        self.board.leave(self.rank, "has failed or was aborted")

    def close(self, deadline: Deadline) -> None:
        """Take no further part."""
        self.board.leave(self.rank, "has closed its communicator")

    def _run(self, ticket: Ticket, deadline: Deadline) -> Callable[[], object]:
        """Copy from the peers' inputs; return what may be written only when all have read."""
        self.board.wait(ticket, "matched", deadline)
        self._join(each.ready for each in ticket.peers.values())
        write = _move(ticket.call, self.rank, [ticket.peers[r].call for r in sorted(ticket.peers)])
        ticket.finished = self._event()
        self.board.mark(ticket)
        return write

    def _event(self) -> torch.cuda.Event | None:
        return torch.cuda.current_stream().record_event() if self.device.type == "cuda" else None

    def _join(self, events: Iterable[torch.cuda.Event | None]) -> None:
        for event in events:
            if event is not None:
                torch.cuda.current_stream().wait_event(event)


class FakeControl(Control):
    """Records travel over the same board as the data, so that a fingerprint meets any call."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Refuse, as the backend does."""
        raise BackendUnavailable("backend fake: use dcp_comm.testing.run_ranks")

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> "FakeControl | None":
        """Follow the backend to the board of the child's name."""
        backend = self._backend.split(child, members)
        return None if backend is None else FakeControl(backend)

    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        """All-gather on the CPU, whatever the device of the data."""
        mine = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        slots = torch.empty(self._backend.size, len(record), dtype=torch.uint8)
        self._backend.issue([Call("all_gather_into", slots, mine)], None, deadline)
        return [bytes(slot.tolist()) for slot in slots]

    def close(self) -> None:
        """Nothing of its own."""


def _move(call: Call, rank: int, peers: list[Call]) -> Callable[[], object]:
    """Copy what may be written at once; return the write that must wait until all have read."""
    output = call.output.detach()
    match call.op:
        case "all_gather_into":
            for slot, peer in zip(_slots(output, peers), peers, strict=True):
                copy_bytes(slot, peer.input)
        case "all_to_all_into":
            for slot, peer in zip(_slots(output, peers), peers, strict=True):
                copy_bytes(slot, _slots(peer.input, peers)[rank])
        case "reduce_scatter_into":
            parts = [_slots(peer.input.detach(), peers)[rank] for peer in peers]
            return partial(output.copy_, _reduce(parts, call.reduce).view(output.shape))
        case "all_reduce":
            reduced = _reduce([peer.input.detach() for peer in peers], call.reduce)
            return partial(output.copy_, reduced)
        case "broadcast":
            copy_bytes(output, peers[call.peer].input)
        case "recv":
            copy_bytes(output, next(peer.input for peer in peers if peer.op == "send"))
    return _nothing


def _slots(tensor: torch.Tensor, peers: list[Call]) -> torch.Tensor:
    return tensor.reshape(len(peers), -1)


def _nothing() -> None: ...


def _reduce(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        _COMBINE.get(op, torch.add)(total, part, out=total)
    return total.div_(len(parts)) if op == "avg" else total
