"""The exact top-K of rows of logits as torch operations, for every device."""

import torch
from torch import Tensor

from dcp_comm.kernels.torch_ops import row_blocks
from dcp_comm.topk.keys import encode, ids_of, scores_of

BLOCK_ELEMENTS = 1 << 20


def local_topk(
    logits: Tensor,
    starts: Tensor | None,
    lengths: Tensor | None,
    mask_neg_inf: bool,
    out: tuple[Tensor, Tensor],
) -> None:
    """Do what `dcp_comm.local_topk` does, for checked arguments, some rows at a time."""
    (rows, width), (scores, ids) = logits.shape, out
    kept = min(ids.shape[1], width)
    scores[:, kept:].fill_(-torch.inf)
    ids[:, kept:].fill_(-1)
    for block in row_blocks(rows, max(1, BLOCK_ELEMENTS // max(1, width))):
        keys = _keys(logits, starts, lengths, block, mask_neg_inf)
        best = keys.topk(kept, dim=1).values
        scores[block, :kept] = scores_of(best)
        ids[block, :kept] = ids_of(best)


def _keys(
    logits: Tensor, starts: Tensor | None, lengths: Tensor | None, rows: slice, mask_neg_inf: bool
) -> Tensor:
    """Return int64 (rows, N) keys, `PAD` outside each row's own columns."""
    ids = torch.arange(logits.shape[1], device=logits.device)[None, :]
    if starts is not None:
        ids = ids - starts[rows, None]
    if lengths is not None:
        ids = ids.masked_fill(ids >= lengths[rows, None], -1)
    return encode(logits[rows].to(torch.float32), ids, mask_neg_inf=mask_neg_inf)
