"""Roll: where ranks that wait for long say so, so that who gives up can name who is missing.

It lies in the store over which the ranks met. A rank writes there once it has waited for a while,
and when it fails, never in a call that goes well at once; so a rank without a word is one that did
not come. What others wrote is not trusted: it is cut, and only ever worded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch.distributed as dist

from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch, DcpCommError
from dcp_comm.processes import ended_ranks
from dcp_comm.rendezvous import Rendezvous

_STORE_SECONDS = 0.3
_DEATH_SECONDS = 0.2
_WORDS = 400
_MISMATCH = f"{CommMismatch.__name__}: "

WAITS, PASSED, FAILED = "waits", "passed", "failed"


@dataclass(frozen=True)
class Word:
    """What a rank left on the roll: where it was, and in what state."""

    state: str
    number: int
    text: str

    def encode(self) -> str:
        """Write ``state number text`` on one line."""
        return f"{self.state} {self.number} {' '.join(self.text.split())}"[:_WORDS]

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """Read what `encode` wrote; None for anything else."""
        state, _, rest = raw[:_WORDS].decode(errors="replace").partition(" ")
        number, _, text = rest.partition(" ")
        if state not in (WAITS, PASSED, FAILED) or not number.isdecimal():
            return None
        return cls(state, int(number), text)


class Roll:
    """One rank's page, and its view of all others'.

    Args:
        store: Shared by the ranks of one communicator and nobody else.
        rank: This rank.
        size: Number of ranks.
        processes: What `dcp_comm.processes.own_process` says on each rank; empty if not known.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, processes: Sequence[str] = ()
    ) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._processes = tuple(processes)

    @classmethod
    def at(cls, rendezvous: Rendezvous, purpose: str) -> Self:
        """Keep a roll where the ranks of a rendezvous met."""
        store = dist.PrefixStore(f"roll/{purpose}", rendezvous.store)
        return cls(store, rendezvous.rank, rendezvous.size, rendezvous.processes)

    def say(self, state: str, number: int, text: str) -> None:
        """Leave word of where this rank is; a store that does not answer soon is left alone."""
        word = Word(state, number, text).encode()
        self._ask(lambda: self._store.set(f"{self._rank}", word))

    def unless_apart(self, number: int, text: str) -> None:
        """Raise if another rank waits at the same number for something else: neither will end.

        Raises:
            CommMismatch: Names both sides.
        """
        for rank, word in self._words().items():
            if word.state == WAITS and word.number == number and word.text != _told(text, number):
                raise CommMismatch(
                    "the ranks are not making the same call\n"
                    f"  rank {self._rank}: call {number}: {text}\n"
                    f"  rank {rank}: call {number}: {word.text}"
                )

    def missing(self, number: int, patience: float) -> str:
        """Word which ranks did not come to a call, and what is known of them.

        Args:
            number: Of the call, counted alike on every rank.
            patience: Seconds to wait for word of ranks that came last.
        """
        words: dict[int, Word] = {}

        def all_heard() -> bool:
            words.update(self._words())
            return len(words) == self._size - 1

        Deadline(patience).poll(all_heard)
        ended = ended_ranks(self._processes, self._rank)
        others = [rank for rank in range(self._size) if rank != self._rank]
        told = (_account(rank, words.get(rank), number, rank in ended) for rank in others)
        return "; ".join(filter(None, told)) or "every rank says that it waits too"

    def lost(self) -> str:
        """Word which ranks have ended or failed; empty if nothing is known.

        Raises:
            CommMismatch: One failed of a mismatch, which this rank is a part of.
        """
        found: list[str] = []

        def heard() -> bool:
            ended = ended_ranks(self._processes, self._rank)
            failed = {rank: word for rank, word in self._words().items() if word.state == FAILED}
            for rank, word in failed.items():
                if word.text.startswith(_MISMATCH):
                    raise CommMismatch(f"{word.text.removeprefix(_MISMATCH)} (told by rank {rank})")
            found[:] = [
                _account(r, failed.get(r), 0, r in ended) for r in sorted(ended | {*failed})
            ]
            return bool(found)

        Deadline(_DEATH_SECONDS).poll(heard)
        return "; ".join(found)

    def _words(self) -> dict[int, Word]:
        """What the others left, as far as they did and the store answers."""
        others = [rank for rank in range(self._size) if rank != self._rank]

        def read() -> dict[int, bytes]:
            present = [rank for rank in others if self._store.check([f"{rank}"])]
            return {rank: self._store.get(f"{rank}") for rank in present}

        found: dict[int, bytes] = {}
        self._ask(lambda: found.update(read()))
        decoded = {rank: Word.decode(raw) for rank, raw in found.items()}
        return {rank: word for rank, word in decoded.items() if word is not None}

    def _ask(self, call: Callable[[], object]) -> None:
        """Use the store, which may be gone or frozen, for a moment at most."""
        try:
            Deadline(_STORE_SECONDS).run(call, "leaving word")
        except (DcpCommError, RuntimeError):
            return


def _told(text: str, number: int) -> str:
    """A text as its reader would find it on the roll."""
    word = Word.decode(Word(WAITS, number, text).encode().encode())
    return "" if word is None else word.text


def _account(rank: int, word: Word | None, number: int, ended: bool) -> str:
    """What there is to say of a rank that another one waits for; empty for one that came."""
    if word is not None and word.state == FAILED:
        died = ", its process has ended" if ended else ""
        return f"rank {rank} failed at call {word.number}: {word.text}{died}"
    if ended:
        return f"the process of rank {rank} has ended"
    if word is None:
        return f"rank {rank} did not come"
    if word.number == number:
        return ""
    order = "is ahead" if word.number > number else "did not come"
    where = "waits at" if word.state == WAITS else "was last heard of at"
    return f"rank {rank} {order}: it {where} call {word.number}, {word.text}"
