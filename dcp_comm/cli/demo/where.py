"""Where: how the winners lie over the ranks, what travelled, how long it took."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.sharding import Shard

BINS = 64
"""Columns of the plot: the text, front to end."""


class Stopwatch:
    """Seconds by stage, in the order they were first measured."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Add what passes inside to a stage."""
        started = perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + perf_counter() - started


@dataclass(frozen=True)
class Share:
    """One rank's winners.

    Attributes:
        total: In all rows.
        least: In the row that has fewest of them here, of rows with K winners.
        most: In the row that has most.
        question: The question's winners, counted over `BINS` equal stretches of the text.
    """

    total: int
    least: int
    most: int
    question: tuple[int, ...]


@dataclass(frozen=True)
class Travelled:
    """What one rank sent and received for one merge, in bytes, and in how many calls."""

    calls: int
    sent: int
    received: int
    control: int


@dataclass(frozen=True)
class Where:
    """Every rank's share, and what this rank's merge moved."""

    shares: tuple[Share, ...]
    travelled: Travelled


def shares(winners: Tensor, tokens: int, shard: Shard) -> tuple[Share, ...]:
    """Return each rank's share of the winners int32 (rows, K); the question is the last row."""
    owners = shard.owner(winners)
    full = (winners >= 0).all(1)
    return tuple(
        _share((owners == rank).sum(1), full, winners[-1][owners[-1] == rank], tokens)
        for rank in range(shard.size)
    )


def _share(counts: Tensor, full: Tensor, asked: Tensor, tokens: int) -> Share:
    of_full = counts[full] if full.any() else counts
    stretches = torch.bincount(asked.long() * BINS // tokens, minlength=BINS)
    total, least, most = (int(each) for each in (counts.sum(), of_full.min(), of_full.max()))
    return Share(total, least, most, tuple(stretches.tolist()))


def travelled(comm: Communicator) -> Travelled:
    """Read the ledger: what was moved since it was reset."""
    ledger = comm.ledger
    control = ledger.by_op.get("fingerprint")
    return Travelled(
        ledger.calls, ledger.bytes_sent, ledger.bytes_received, control.bytes_sent if control else 0
    )


def stretches(shares: Sequence[Share]) -> int:
    """Return the most winners in one stretch of one rank, for the plot's scale."""
    return max(max(share.question) for share in shares)
