"""What a token is worth to a query row: the seam at which a faster scorer takes over."""

from typing import Protocol

import torch
from torch import Tensor

from dcp_comm.kernels.torch_ops import row_blocks

TILE_ELEMENTS = 1 << 20


class Score(Protocol):
    """Anything called like `relu_scores`, with the same result up to rounding.

    One call has rows and keys of one request, at least one of each. It is made on torch's current
    stream, must not keep its arguments, and must write every element of ``logits``.
    """

    def __call__(self, logits: Tensor, q: Tensor, weights: Tensor, keys: Tensor) -> None:
        """Fill ``logits``."""


def relu_scores(logits: Tensor, q: Tensor, weights: Tensor, keys: Tensor) -> None:
    """Write ``sum over h of weights[t, h] * relu(q[t, h] . keys[s])``, DeepSeek-V3.2's index score.

    Works on tiles of at most `TILE_ELEMENTS` products, heads included (more only where one token's
    heads are more): temporaries stay below twice that many float32.

    Args:
        logits: float32 (n, m), any row stride, overwritten.
        q: float32 (n, H, D).
        weights: float32 (n, H), every constant factor already in them.
        keys: float32 (m, D).
    """
    heads = q.shape[1]
    width = max(1, min(len(keys), TILE_ELEMENTS // heads))
    for rows in row_blocks(len(q), max(1, TILE_ELEMENTS // (heads * width))):
        queries = q[rows].flatten(0, 1)
        for columns in row_blocks(len(keys), width):
            dots = (queries @ keys[columns].T).relu_().unflatten(0, (-1, heads))
            torch.bmm(weights[rows, None], dots, out=logits[rows, None, columns])
