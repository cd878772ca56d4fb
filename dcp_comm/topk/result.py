"""What a merge returns, and where it writes it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MergeResult:
    """The winners of T rows; the caller owns the memory, which no merge keeps as scratch.

    Attributes:
        ids: int32 (T, K), any row stride; -1 only behind the winners (and, as slots, where the
            block table has no page for one). With ``MergeOptions(tail=False)`` what is behind them
            may be anything.
        counts: int32 (T,), winners of each row.
        certified: bool (T,), True where the row is exact whatever tie rule the local top-K used;
            False where a token that a rank did not list could tie with the last winner.
    """

    ids: Tensor
    counts: Tensor
    certified: Tensor

    @classmethod
    def allocate(cls, rows: int, k: int, device: torch.device | str) -> "MergeResult":
        """Return an empty result: no winners, nothing certified."""
        return cls(
            ids=torch.full((rows, k), -1, dtype=torch.int32, device=device),
            counts=torch.zeros(rows, dtype=torch.int32, device=device),
            certified=torch.zeros(rows, dtype=torch.bool, device=device),
        )

    @property
    def rows(self) -> int:
        """Number of rows T."""
        return self.counts.shape[0]

    def part(self, rows: slice) -> "MergeResult":
        """Return some of the rows, in the same memory."""
        if rows == slice(0, self.rows):
            return self
        return MergeResult(self.ids[rows], self.counts[rows], self.certified[rows])
