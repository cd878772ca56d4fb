"""A rank's own top-K by the selection contract, for callers without a kernel that keeps it."""

import torch
from torch import Tensor

from dcp_comm.checks import check_int
from dcp_comm.kernels.torch_ops import row_blocks
from dcp_comm.topk.arguments import LOGITS, Refuse
from dcp_comm.topk.keys import encode, ids_of, scores_of

_BLOCK_ELEMENTS = 1 << 20


def local_topk(
    logits: Tensor,
    k: int,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    mask_neg_inf: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return each row's k best columns: score descending, then position ascending.

    A row is the columns ``start .. start + length`` of its logits, as far as they exist; positions
    count from ``start``. NaN never wins, -0.0 equals 0.0 (and comes back as 0.0).

    Args:
        logits: float32, bfloat16 or float16 (T, N), any strides.
        k: At least 1; may exceed N.
        starts: int32 or int64 (T,), first column of each row; None for 0.
        lengths: int32 or int64 (T,), columns of each row; None for all, below 0 counts as 0.
        mask_neg_inf: Whether -inf means masked, so that it never wins.

    Returns:
        scores float32 (T, k) and ids int32 (T, k), freshly allocated, padded with -inf and -1.

    Raises:
        CommArgumentError: A dtype, shape, device or k is not as above.
    """
    Refuse("local_topk").unless_tensor("logits", logits, (None, None), LOGITS)
    refuse = Refuse("local_topk", logits.device)
    rows, width = logits.shape
    check_int("local_topk", "k", k, 1)
    refuse.unless_integers("starts", starts, rows)
    refuse.unless_integers("lengths", lengths, rows)
    scores = logits.new_full((rows, k), -torch.inf, dtype=torch.float32)
    ids = logits.new_full((rows, k), -1, dtype=torch.int32)
    kept = min(k, width)
    for block in row_blocks(rows, max(1, _BLOCK_ELEMENTS // max(1, width))):
        keys = _keys(logits, starts, lengths, block, mask_neg_inf)
        best = keys.topk(kept, dim=1).values
        scores[block, :kept] = scores_of(best)
        ids[block, :kept] = ids_of(best)
    return scores, ids


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
