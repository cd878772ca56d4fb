"""A rank's own top-K by the selection contract, for callers without a kernel that keeps it."""

import torch
from torch import Tensor

from dcp_comm.checks import check_int
from dcp_comm.kernels.dispatch import local_topk_for
from dcp_comm.topk.arguments import LOGITS, Refuse


def local_topk(
    logits: Tensor,
    k: int,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    mask_neg_inf: bool = True,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return each row's k best columns: score descending, then position ascending.

    A row is the columns ``start .. start + length`` of its logits, as far as they exist; positions
    count from ``start``. NaN never wins, -0.0 equals 0.0 (and comes back as 0.0).

    On CUDA it is enqueued on the current stream and reads nothing back. Kernels do it for k up to
    4096, compiled by the first call of a process, which a graph must not capture; otherwise torch
    operations do. All give the same bits.

    Args:
        logits: float32, bfloat16 or float16 (T, N), any strides.
        k: At least 1; may exceed N.
        starts: int32 or int64 (T,), first column of each row; None for 0.
        lengths: int32 or int64 (T,), columns of each row; None for all, below 0 counts as 0.
        mask_neg_inf: Whether -inf means masked, so that it never wins.
        out: float32 (T, k) and int32 (T, k), both contiguous, overwritten, apart from each other
            and from all inputs; None for new tensors.

    Returns:
        scores float32 (T, k) and ids int32 (T, k), padded with -inf and -1: ``out`` if given.

    Raises:
        CommArgumentError: A dtype, shape, device or k is not as above, or ``out`` overlaps.
        BackendUnavailable: ``DCP_COMM_KERNELS=cuda`` asks for kernels that cannot be had.
    """
    Refuse("local_topk").unless_tensor("logits", logits, (None, None), LOGITS)
    refuse = Refuse("local_topk", logits.device)
    rows = logits.shape[0]
    check_int("local_topk", "k", k, 1)
    refuse.unless_integers("starts", starts, rows)
    refuse.unless_integers("lengths", lengths, rows)
    if out is None:
        scores = logits.new_empty((rows, k), dtype=torch.float32)
        out = scores, torch.empty_like(scores, dtype=torch.int32)
    else:
        refuse.unless_columns(out, rows, k)
        refuse.if_overlapping(out, logits, starts, lengths, argument="out")
        refuse.if_overlapping(out[:1], out[1], argument="out")
    local_topk_for(logits.device, k)(logits, starts, lengths, mask_neg_inf, out)
    return out
