"""Index keys in pages: how they are stored, writing a step's new ones, reading a request's.

A cache is contiguous, (pages, page_size, any), in one of three forms:

========  =====================  ===================================================================
dtype     a token                a page
========  =====================  ===================================================================
float32   D values               its tokens one after another
bfloat16  D values               the same
uint8     D + 4 bytes: fp8 e4m3  first ``page_size * D`` bytes of values, token after token, then
          values, fp32 scale     ``page_size`` scales: as vLLM and DeepGEMM lay it out
========  =====================  ===================================================================

A slot is ``page * page_size + place in the page``.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from dcp_comm.kernels.torch_ops import row_blocks
from dcp_comm.topk.arguments import INTEGERS, LOGITS, Refuse

BLOCK_TOKENS, BLOCK_ELEMENTS = 1 << 16, 1 << 23
FP8 = torch.float8_e4m3fn
LARGEST_FP8 = 448.0
SCALE_BYTES = 4
SMALLEST_PEAK = 1e-4
"""What a token's largest value counts as at least, as in vLLM: no scale is 0."""


class Planes(NamedTuple):
    """Views of a cache.

    Attributes:
        values: (pages, page_size, D), in the dtype of the cache.
        scales: float32 (pages, page_size) where values are fp8.
    """

    values: Tensor
    scales: Tensor | None


def planes(cache: Tensor) -> Planes:
    """Return where a cache holds values and scales."""
    if cache.dtype != torch.uint8:
        return Planes(cache, None)
    page_size, head_dim = cache.shape[1], cache.shape[2] - SCALE_BYTES
    pages = cache.flatten(1)
    values, scales = pages.split([page_size * head_dim, page_size * SCALE_BYTES], 1)
    return Planes(values.unflatten(1, (page_size, head_dim)), scales.view(torch.float32))


def check_cache(
    refuse: Refuse, argument: str, cache: Tensor, page_size: int | None, head_dim: int
) -> None:
    """Refuse what is no cache of keys of ``head_dim`` values; page_size None: any."""
    refuse.unless_tensor(
        argument, cache, (None, page_size, None), (torch.float32, torch.bfloat16, torch.uint8)
    )
    scaled = cache.dtype == torch.uint8
    refuse.unless_tensor(
        argument, cache, (None, page_size, head_dim + SCALE_BYTES * scaled), (cache.dtype,)
    )
    if not cache.is_contiguous():
        raise refuse(argument, f"strides {cache.stride()}", "contiguous pages")
    values = cache.shape[1] * head_dim
    if scaled and (values % SCALE_BYTES or cache.storage_offset() % SCALE_BYTES):
        got = f"{values} bytes of values a page, from byte {cache.storage_offset()} on"
        raise refuse(argument, got, "multiples of 4, so that the scales are aligned")


def slots(pages: Tensor, first: int, count: int, page_size: int) -> Tensor:
    """Return the slots of one request's local positions ``first ..``, int64 (count,).

    A slot is ``pages[j // page_size] * page_size + j % page_size``, in 64 bits: caches exceed 2^31
    elements.
    """
    j = torch.arange(first, first + count, device=pages.device)
    return pages[j // page_size].to(torch.int64) * page_size + j % page_size


def read_keys(keys: Tensor, cache: Tensor, pages: Tensor, first: int = 0) -> None:
    """Copy one request's keys from local position ``first`` on, fp8 times its scale.

    Args:
        keys: float32 (count, D), contiguous, overwritten.
        cache: As in the module's table.
        pages: Integer (any,), this request's pages in order. A page that does not exist reads as
            the nearest that does.
        first: Local position of the first key.
    """
    page_size, stored = cache.shape[1], planes(cache)
    for block in row_blocks(len(keys), min(BLOCK_TOKENS, max(1, BLOCK_ELEMENTS // keys.shape[1]))):
        count = block.stop - block.start
        index = slots(pages, first + block.start, count, page_size)
        _read(keys[block], stored, index.clamp_(0, len(cache) * page_size - 1))


def _read(keys: Tensor, stored: Planes, slots: Tensor) -> None:
    """Copy the keys of some slots, all of which exist."""
    values, scales = stored
    if scales is None:
        flat = values.flatten(0, 1)
        if flat.dtype == keys.dtype:
            torch.index_select(flat, 0, slots, out=keys)
        else:
            keys.copy_(flat.index_select(0, slots))
    else:
        place = _places(slots, values.shape[1])
        keys.copy_(values[place].view(FP8))
        keys *= scales[place][:, None]


def write_keys(
    cache: Tensor, keys: Tensor, slots: Tensor, *, power_of_two_scales: bool = False
) -> None:
    """Store a step's new keys in the slots this rank owns; enqueued, nothing is read back.

    A fp8 key is stored as ``key / scale``, rounded to nearest even, with ``scale = max(|key|) /
    448`` (at least 1e-4 / 448). A key that holds NaN or infinity reads back as NaN and never wins.

    Args:
        cache: As in the module's table; only the slots given are overwritten.
        keys: float32, bfloat16 or float16 (n, D), any strides.
        slots: int32 or int64 (n,), on the same device, as `SparseIndexer.slots` gives them: below 0
            for a token of another rank or padding, which is skipped. No slot twice.
        power_of_two_scales: Whether scales are rounded up to a power of two ("ue8m0"), as
            DeepSeek-V3.2 has it.

    Raises:
        CommArgumentError: An argument is not as above, or, on the CPU where looking is free, a slot
            lies beyond the cache (on CUDA it is skipped); nothing was written.
    """
    Refuse("write_keys").unless_tensor("keys", keys, (None, None), LOGITS)
    refuse = Refuse("write_keys", keys.device)
    check_cache(refuse, "cache", cache, None, keys.shape[1])
    refuse.unless_tensor("slots", slots, (len(keys),), INTEGERS)
    capacity = cache.shape[0] * cache.shape[1]
    if slots.device.type == "cpu" and (slots >= capacity).any():
        remedy = "Give the slots of this rank's own cache, -1 for other ranks' tokens"
        raise refuse("slots", int(slots.max()), f"at most {capacity - 1}", remedy)
    if len(keys) and capacity:
        _write(planes(cache), keys.detach(), slots, power_of_two_scales)


def _write(stored: Planes, keys: Tensor, slots: Tensor, power_of_two: bool) -> None:
    """Write at static shapes: a skipped token writes again what the first kept one writes."""
    page_size = stored.values.shape[1]
    capacity = len(stored.values) * page_size
    kept = (slots >= 0) & (slots < capacity)
    source = torch.where(kept, torch.arange(len(keys), device=keys.device), kept.int().argmax())
    place = _places(slots[source].long().clamp_(0, capacity - 1), page_size)
    if stored.scales is None:
        contents = [(stored.values, keys.to(stored.values.dtype))]
    else:
        values, scales = quantized(keys, power_of_two=power_of_two)
        contents = [(stored.values, values), (stored.scales, scales)]
    nothing = ~kept.any()
    for plane, new in contents:
        plane[place] = torch.where(nothing, plane[place], new[source])


def quantized(keys: Tensor, *, power_of_two: bool) -> tuple[Tensor, Tensor]:
    """Return keys (n, D) as fp8 in uint8 (n, D), and their scales float32 (n,)."""
    wide = keys.to(torch.float32)
    peaks = wide.abs().amax(1).clamp_(min=SMALLEST_PEAK)
    # By a tensor: CUDA divides by a number as if by multiplying with its rounded reciprocal.
    scales = peaks / torch.full_like(peaks, LARGEST_FP8)
    if power_of_two:
        # The bits of a positive float32, rounded up to the next one without a fraction.
        scales = (((scales.view(torch.int32) + 0x7FFFFF) >> 23) << 23).view(torch.float32)
    return (wide / scales[:, None]).to(FP8).view(torch.uint8), scales


def _places(slots: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Return page and place in it."""
    return slots // page_size, slots % page_size
