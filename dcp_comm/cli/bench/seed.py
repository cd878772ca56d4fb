"""The merge that engines run today, built from torch's own operations, as a baseline.

vLLM's ``_merge_dcp_topk_global``: pack (score, id) as two float32 values, all-gather into a
rank-major buffer, move the ranks side by side, select. In chunks of 1024 rows as it was proposed
upstream, or all rows at once as it was before. The move also parts scores from ids, at the same
bytes, so that ``torch.topk`` need not copy them again. torch.topk breaks ties as it likes: its rows
are compared by their scores, and ids that the rule of ties would not have chosen are only counted.
"""

import torch
from torch import Tensor

from dcp_comm.cli.bench.inputs import Part

CHUNK_ROWS = 1024


class SeedRoute:
    """The route's buffers for one rank's part, and its four steps on some rows at a time.

    Args:
        part: This rank's.
        k: Winners a row.
        chunk_rows: Rows at a time; None for all.

    Attributes:
        packed: float32 (c, K, 2).
        gathered: float32 (p, c, K, 2), rank-major.
        by_row: float32 (2, c, p * K), scores and ids.
        ids: int32 (T, K), the winners' global ids.
    """

    def __init__(self, part: Part, k: int, chunk_rows: int | None) -> None:
        self._part, self._k = part, k
        rows, size = part.ids.shape[0], part.shard.size
        self._chunk = min(rows, chunk_rows or rows)
        new = part.logits.new_empty
        self.packed = new((self._chunk, k, 2))
        self.gathered = new((size, self._chunk, k, 2))
        self.by_row = new((2, self._chunk, size * k))
        self.ids = torch.empty_like(part.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of scratch."""
        return sum(each.nbytes for each in (self.packed, self.gathered, self.by_row))

    def chunks(self) -> list[slice]:
        """Return the slices of rows that go together."""
        rows = self._part.ids.shape[0]
        return [slice(at, min(at + self._chunk, rows)) for at in range(0, rows, self._chunk)]

    def pack(self, rows: slice) -> Tensor:
        """Look the scores up, and write them beside the global ids; returns what is sent."""
        ids, shard = self._part.ids[rows].long(), self._part.shard
        packed = self.packed[: len(ids)]
        scores = self._part.logits[rows].gather(1, ids.clamp(min=0))
        packed[..., 0] = scores.masked_fill_(ids < 0, -torch.inf)
        packed[..., 1] = ids.mul_(shard.size).add_(shard.rank)
        return packed

    def received(self, packed: Tensor) -> Tensor:
        """Return where the all-gather of what is sent writes."""
        size = self._part.shard.size
        return self.gathered.view(-1)[: size * packed.numel()].view(size, *packed.shape)

    def move(self, gathered: Tensor) -> Tensor:
        """Put the ranks' candidates of each row side by side."""
        size, rows, k, _ = gathered.shape
        by_row = self.by_row.view(-1)[: gathered.numel()].view(2, rows, size, k)
        by_row.copy_(gathered.permute(3, 1, 0, 2))
        return by_row.flatten(2)

    def select(self, by_row: Tensor, rows: slice) -> None:
        """Select by score, and take the ids along."""
        best = by_row[0].topk(self._k, dim=1).indices
        self.ids[rows] = by_row[1].gather(1, best)
