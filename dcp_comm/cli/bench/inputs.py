"""What one rank brings to a merge, drawn and answered without the library."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.cli.bench import rows
from dcp_comm.cli.bench.rows import Shape
from dcp_comm.sharding import Shard


@dataclass(frozen=True)
class Question:
    """Rows of one shape and kind, and who wins.

    Attributes:
        shape: T rows over so many tokens.
        kind: A name of `rows.KINDS`.
        k: Winners a row; there are as many tokens, and the baselines need no padding.
        size: Number of ranks p.
        scores: float32 (T, length).
        winners: int32 (T, K), the right answer.
    """

    shape: Shape
    kind: str
    k: int
    size: int
    scores: Tensor
    winners: Tensor

    @classmethod
    def draw(cls, shape: Shape, kind: str, k: int, size: int, device: torch.device) -> "Question":
        """Draw the rows and sort them."""
        scores = rows.draw(kind, shape, k, device)
        return cls(shape, kind, k, size, scores, rows.winners(scores, k))

    def part(self, rank: int) -> "Part":
        """Return what a rank holds of the rows."""
        logits = self.scores[:, rank :: self.size].contiguous()
        ids = rows.shuffled(rows.winners(logits, self.k))
        lengths = torch.full((self.shape.rows,), logits.shape[1], dtype=torch.int32)
        return Part(Shard(rank, self.size), logits, ids, lengths.to(logits.device))

    def own(self, rank: int) -> Tensor:
        """Return int32 (T, K): the winners that a rank holds, as its local positions."""
        return rows.own(self.winners, rank, self.size)


@dataclass(frozen=True)
class Part:
    """A rank's logits, and its local top-K as an engine's kernel leaves it.

    Attributes:
        shard: Its place in the deal.
        logits: float32 (T, n).
        ids: int32 (T, K), local positions in a random order, -1 where there are none left.
        lengths: int32 (T,), n.
    """

    shard: Shard
    logits: Tensor
    ids: Tensor
    lengths: Tensor
