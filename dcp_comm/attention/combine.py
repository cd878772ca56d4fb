"""The combine: ``lse = log(sum of exp(lse_r))``, ``out = sum of exp(lse_r - lse) * out_r``.

Both sums are over the ranks r, as in ring attention and vLLM's decode context parallelism. A rank
whose LSE is -inf had no token for the row: it counts as nothing, whatever its output holds.

Shares are taken relative to the largest LSE and divided by their sum: ``exp(lse_r - lse)`` itself
would lose what rounding took from a large ``lse``.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dcp_comm.attention.result import Attended
from dcp_comm.kernels.torch_ops import row_blocks


class Total(NamedTuple):
    """What all ranks' LSEs come to, each float32 (n, heads).

    Attributes:
        largest: The largest LSE; 0 where all are -inf.
        shares: Sum over the ranks of ``exp(lse_r - largest)``; 0 there.
        base: Their logarithm.
    """

    largest: Tensor
    shares: Tensor
    base: str

    @classmethod
    def of(cls, lses: Tensor, base: str) -> "Total":
        """Sum up float32 (p, n, heads)."""
        largest = lses.amax(0)
        largest.masked_fill_(largest == -torch.inf, 0)
        return cls(largest, _power(lses - largest, base).sum(0), base)

    @property
    def lse(self) -> Tensor:
        """The LSE over all ranks; -inf where none had a token."""
        return self.largest + (self.shares.log2() if self.base == "2" else self.shares.log())

    def weighted(self, partial: Tensor, lse: Tensor) -> Tensor:
        """Return what a rank adds to the result, float32 (n, heads, V); 0 without a token.

        Args:
            partial: (n, heads, V), the rank's own output.
            lse: float32 (n, heads), its LSE.
        """
        share = _power(lse - self.largest, self.base) / self.shares
        added = partial.to(torch.float32) * share[..., None]
        return added.masked_fill_((lse == -torch.inf)[..., None], 0)


def combine(out: Attended, partials: Tensor, lses: Tensor, base: str) -> None:
    """Write the attention over all ranks' tokens, summed in rank order.

    Args:
        out: (n, heads, V) and (n, heads), overwritten.
        partials: (p, n, heads, V), every rank's output.
        lses: float32 (p, n, heads).
        base: Their logarithm.
    """
    for rows in row_blocks(lses.shape[1]):
        total = Total.of(lses[:, rows], base)
        first, *others = zip(partials[:, rows], lses[:, rows], strict=True)
        summed = total.weighted(*first)
        for partial, lse in others:
            summed += total.weighted(partial, lse)
        out.out[rows] = summed
        out.lse[rows] = total.lse


def _power(exponents: Tensor, base: str) -> Tensor:
    return exponents.exp2() if base == "2" else exponents.exp()
