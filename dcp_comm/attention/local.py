"""Sparse attention of one rank: every query head against the winners that the rank holds."""

import math

import torch
from torch import Tensor

from dcp_comm.attention.result import BASES, FLOATS, Attended, check_out
from dcp_comm.kernels.torch_ops import row_blocks
from dcp_comm.topk.arguments import Refuse

BLOCK_ELEMENTS = 1 << 20
"""Gathered elements alive at once, unless those of one row are more."""


@torch.no_grad()
def sparse_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor | int,
    winners: Tensor,
    counts: Tensor | None = None,
    *,
    scale: float,
    base: str = "e",
    out: Attended | None = None,
) -> Attended:
    """Attend to each row's winners; a row without any gives out 0 and LSE -inf.

    Query heads share key heads in groups of H / G, consecutive as in GQA; G = 1 is MLA, where one
    latent row serves all heads and the value is its first part, G = H is plain multi-head. Nothing
    is exchanged and, on CUDA, nothing read back. Temporaries are a few times `BLOCK_ELEMENTS`
    float32, or what one row's K gathered keys and values take.

    Args:
        q: float32, bfloat16 or float16 (T, H, D), any strides.
        keys: (N, G, D) of the same dtype, any strides: this rank's cache, one token a row.
        values: (N, G, V) likewise; or V, the first elements of each key.
        winners: int32 (T, K), any row stride: rows of ``keys``, in any order; below 0 is none. Such
            rows are never read: the cache may hold anything there.
        counts: int32 or int64 (T,), winners of each row: what stands behind them counts as none.
            None where -1 alone says so.
        scale: Factor of the products; finite.
        base: Logarithm of the LSE: ``e`` or ``2``.
        out: Where to write, contiguous, apart from the inputs; None to allocate.

    Returns:
        ``out``, or the allocated result, which is the caller's.

    Raises:
        CommArgumentError: An argument is not as above; on the CPU also a winner at or beyond N,
            which on CUDA, where looking would wait, makes its row NaN.
    """
    refuse = Refuse("sparse_attention", q.device if isinstance(q, Tensor) else None)
    _check(refuse, q, keys, values, winners, counts)
    refuse.unless_one_of("base", base, BASES)
    if not isinstance(scale, int | float) or not math.isfinite(scale):
        raise refuse("scale", repr(scale), "a finite number")
    values = keys[..., :values] if isinstance(values, int) else values
    (rows, heads, _), dim = q.shape, values.shape[2]
    if out is None:
        out = Attended.allocate(rows, heads, dim, q.dtype, q.device)
    check_out(refuse, out, rows, heads, dim, q.dtype)
    refuse.if_overlapping(out, q, keys, values, winners, counts, argument="out")
    here = _here(winners, counts)
    _unless_existing(refuse, winners, here, len(keys))
    if not (len(keys) and winners.shape[1]):
        out.out.zero_()
        out.lse.fill_(-torch.inf)
        return out
    a_row = winners.shape[1] * keys.shape[1] * (keys.shape[2] + dim) + heads * winners.shape[1]
    for block in row_blocks(rows, max(1, BLOCK_ELEMENTS // max(1, a_row))):
        _attend(out.part(block), q[block], keys, values, winners[block], here[block], scale)
    if base == "2":
        out.lse.mul_(math.log2(math.e))
    return out


def _attend(
    out: Attended,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    winners: Tensor,
    here: Tensor,
    scale: float,
) -> None:
    """Write some rows' attention; ``here`` bool (n, K) says which winners there are."""
    index = winners.clamp(0, len(keys) - 1)
    queries = q.to(torch.float32).unflatten(1, (keys.shape[1], -1)) * scale
    logits = torch.einsum("nghd,nkgd->nghk", queries, keys[index].to(torch.float32))
    beyond = here & (winners >= len(keys))
    logits.masked_fill_(beyond[:, None, None], torch.nan)
    logits.masked_fill_(~here[:, None, None], -torch.inf)
    largest = logits.amax(3, keepdim=True)
    largest.masked_fill_(largest == -torch.inf, 0)
    weights = logits.sub_(largest).exp_()
    total = weights.sum(3, keepdim=True)
    # A weight of 0 is not enough: what nobody wrote there may be NaN.
    read = values[index].to(torch.float32).masked_fill_(~here[..., None, None], 0)
    summed = torch.einsum("nghk,nkgv->nghv", weights, read)
    out.out.copy_((summed / total.masked_fill(total == 0, 1)).flatten(1, 2))
    out.lse.copy_((largest + total.log()).flatten(1, 3))


def _here(winners: Tensor, counts: Tensor | None) -> Tensor:
    """Return bool (T, K): there is a winner."""
    here = winners >= 0
    if counts is not None:
        here &= torch.arange(winners.shape[1], device=winners.device) < counts[:, None]
    return here


def _check(
    refuse: Refuse,
    q: Tensor,
    keys: Tensor,
    values: Tensor | int,
    winners: Tensor,
    counts: Tensor | None,
) -> None:
    """Refuse tensors that do not fit together."""
    refuse.unless_tensor("q", q, (None, None, None), FLOATS)
    rows, heads, head_dim = q.shape
    refuse.unless_tensor("keys", keys, (None, None, head_dim), (q.dtype,))
    tokens, groups, _ = keys.shape
    if groups == 0 or heads % groups:
        raise refuse("keys", f"{groups} key heads", f"a divisor of the {heads} heads of q")
    if isinstance(values, Tensor):
        refuse.unless_tensor("values", values, (tokens, groups, None), (q.dtype,))
    elif type(values) is not int or not 1 <= values <= head_dim:
        need = f"a torch.Tensor, or an int in 1 .. {head_dim}, the first elements of a key"
        raise refuse("values", repr(values), need)
    refuse.unless_tensor("winners", winners, (rows, None), (torch.int32,))
    refuse.unless_integers("counts", counts, rows)


def _unless_existing(refuse: Refuse, winners: Tensor, here: Tensor, tokens: int) -> None:
    """Refuse, on the CPU, where looking is free, winners that the cache does not have."""
    if winners.device.type == "cpu" and winners.numel():
        largest = int(winners.masked_fill(~here, -1).max())
        if largest >= tokens:
            remedy = "Pass local positions or slots of this rank's own cache, not global ids"
            raise refuse("winners", largest, f"rows of keys, below {tokens}", remedy)
