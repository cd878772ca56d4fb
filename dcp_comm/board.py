"""Where ranks that are threads post their calls and find their peers'.

Matching and failing happen here; moving data does not.
"""

from dataclasses import dataclass, field
from threading import Condition, get_ident

import torch

from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout

_POLL_SECONDS = 0.05


@dataclass(eq=False)
class Ticket:
    """One rank's part in one call: posted, then matched with its peers', then run, then done."""

    rank: int
    call: Call
    ready: torch.cuda.Event | None
    peers: "dict[int, Ticket]" = field(default_factory=dict)
    ran: bool = False
    finished: torch.cuda.Event | None = None

    @property
    def matched(self) -> bool:
        """Whether all peers have posted their part."""
        return bool(self.peers)

    @property
    def run_by_all(self) -> bool:
        """Whether all peers have done their copying."""
        return all(peer.ran for peer in self.peers.values())

    def forget(self) -> None:
        """Let go of tensors and peers, once run by all: a caller's memory is not kept from it."""
        del self.call
        self.peers = {}


class World:
    """All boards of one run, behind one lock, and which thread sits where."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.boards: dict[str, Board] = {}
        self._seats: dict[int, list[tuple[Board, int]]] = {}

    def sit(self, name: str, rank: int, size: int) -> "Board":
        """Give the calling thread a rank's seat at the board of one communicator."""
        with self.changed:
            board = self.boards.setdefault(name, Board(self.changed, size))
            self._seats.setdefault(get_ident(), []).append((board, rank))
            return board

    def leave(self, reason: str) -> None:
        """The calling thread ends: tell every board at which it sat."""
        for board, rank in self._seats.pop(get_ident(), []):
            board.leave(rank, reason)


class Board:
    """Where the ranks of one communicator post their calls and find their peers'."""

    def __init__(self, changed: Condition, size: int) -> None:
        self.changed, self.size = changed, size
        self.open: list[list[Ticket]] = [[] for _ in range(size)]
        self.gone: dict[int, str] = {}
        self.failure: CommMismatch | None = None

    def leave(self, rank: int, reason: str) -> None:
        """Note that a rank takes no further part; wakes everybody."""
        with self.changed:
            self.gone.setdefault(rank, reason)
            self.changed.notify_all()

    def post(self, rank: int, tickets: list[Ticket]) -> None:
        """Put up one rank's tickets and match what can be matched."""
        with self.changed:
            self.open[rank].extend(tickets)
            self._match()
            self.changed.notify_all()

    def wait(self, what: Ticket, state: str, deadline: Deadline) -> None:
        """Wait until a ticket is ``matched`` or ``run_by_all``, or raise why it cannot be.

        Raises:
            CommMismatch: This call and a peer's do not match.
            CommPeerLost: A rank that this ticket needs has ended.
            CommTimeout: Names the ranks that did not come.
        """
        with self.changed:
            while not getattr(what, state):
                if self.failure is not None:
                    raise CommMismatch(*self.failure.args)
                deadline.interrupt()
                self._raise_if_lost(what)
                if deadline.expired():
                    missing = ", ".join(map(str, self._missing(what)))
                    raise CommTimeout(
                        f"{what.call}: not matched within {deadline.timeout:g} s; missing rank "
                        f"{missing}"
                    )
                self.changed.wait(min(_POLL_SECONDS, deadline.remaining() + 1e-3))

    def mark(self, ticket: Ticket) -> None:
        """Note that a rank has done its copying for a ticket."""
        with self.changed:
            ticket.ran = True
            self.changed.notify_all()

    def _match(self) -> None:
        posted = self._heads()
        if len({_signature(head) for head in posted}) > 1:
            self._fail(posted)
        elif len(posted) == self.size:
            self._pair({ticket.rank: ticket for ticket in posted})
            self._match()
        else:
            for send in [t for tickets in self.open for t in tickets if t.call.op == "send"]:
                self._match_send(send)
            self._fail_if_stuck()

    def _heads(self) -> list[Ticket]:
        """Each rank's next collective, of those that have posted one."""
        heads = (next((t for t in tickets if t.call.collective), None) for tickets in self.open)
        return [head for head in heads if head is not None]

    def _match_send(self, send: Ticket) -> None:
        for ticket in self.open[send.call.peer]:
            if ticket.call.op == "recv" and ticket.call.peer == send.rank:
                if _signature(ticket) == _signature(send):
                    self._pair({send.rank: send, ticket.rank: ticket})
                else:
                    self._fail([send, ticket])
                break

    def _pair(self, peers: dict[int, Ticket]) -> None:
        for rank, ticket in peers.items():
            ticket.peers = peers
            self.open[rank] = [each for each in self.open[rank] if each is not ticket]

    def _fail_if_stuck(self) -> None:
        """When every rank waits and nothing can match, the orders differ."""
        if self.size > 1 and all(self.open):
            self._fail([tickets[0] for tickets in self.open])

    def _fail(self, tickets: list[Ticket]) -> None:
        lines = "\n".join(f"  rank {ticket.rank}: {ticket.call}" for ticket in tickets)
        self.failure = CommMismatch(f"the ranks' calls do not match\n{lines}")

    def _raise_if_lost(self, what: Ticket) -> None:
        for rank in self._missing(what):
            if rank in self.gone:
                raise CommPeerLost(f"{what.call}: rank {rank} {self.gone[rank]}")

    def _missing(self, what: Ticket) -> list[int]:
        if what.peers:
            return [rank for rank, ticket in what.peers.items() if not ticket.ran]
        if not what.call.collective:
            return [what.call.peer]
        here = [any(ticket.call.collective for ticket in tickets) for tickets in self.open]
        return [rank for rank in range(self.size) if not here[rank]]


def _signature(ticket: Ticket) -> tuple[object, ...]:
    call, payload = ticket.call, ticket.call.payload
    size = (payload.dtype, payload.numel())
    return (call.op, call.reduce, call.peer, size) if ticket.call.collective else (size,)
