"""How kernels are told of tensors: addresses and integers."""

from functools import cache

import torch
from torch import Tensor

from dcp_comm.kernels.primitives import Emission, Splitters
from dcp_comm.sharding import Shard

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The numbers of the dtypes in the sources."""


def pointer(tensor: Tensor | None) -> int:
    """Return where a tensor lies; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def integers(column: Tensor | None) -> tuple[int, int]:
    """Return where integers lie, and their form: twice the stride, one more for 64 bits."""
    if column is None:
        return 0, 0
    return column.data_ptr(), 2 * column.stride(0) + (column.dtype == torch.int64)


_NO_TABLE = (0,) * 8
_MOST = 1 << 31


def _divisor(number: int) -> tuple[int, int]:
    """Return the magic and the shift by which kernels divide numbers below 2^31."""
    shift = (number - 1).bit_length()
    return (1 << (31 + shift)) // number + 1, shift


@cache
def _shard(shard: Shard) -> tuple[int, ...]:
    """Return rank, size and interleave; no position is beyond the largest interleave here."""
    interleave = min(shard.interleave, _MOST)
    return shard.rank, shard.size, interleave, *_divisor(interleave), *_divisor(shard.size)


_GLOBAL = (0, *_shard(Shard(0, 1)))


def packed(run: Tensor, splitters: Splitters | None) -> tuple[int, ...]:
    """Return where runs go, and their splitters if anybody wants them."""
    if splitters is None:
        return run.data_ptr(), run.shape[1], 0, 1, 0
    keys, block = splitters
    return run.data_ptr(), run.shape[1], keys.data_ptr(), block, keys.shape[1]


def candidates(
    ids: Tensor, lengths: Tensor | None, shard: Shard, mask_neg_inf: bool
) -> tuple[int, ...]:
    """Return a rank's ids, and what tells which of them count."""
    columns = (ids.data_ptr(), ids.stride(0), *integers(lengths))
    return *columns, *_shard(shard), _most(shard), int(mask_neg_inf)


@cache
def _most(shard: Shard) -> int:
    """Return how many local positions have a global id below 2^31."""
    return shard.local_length(_MOST)


def emission(to: Emission) -> tuple[int, ...]:
    """Return where winners go, and in what form."""
    ids, counts, certified = to.ids, to.counts.data_ptr(), to.certified.data_ptr()
    where = (ids.data_ptr(), ids.stride(0), counts, certified, to.uncertified.data_ptr())
    shard = _GLOBAL if to.shard is None else (1, *_shard(to.shard))
    return *where, int(to.by_position), *shard, *_table(to)


def to_ids(ids: Tensor, by_position: bool) -> tuple[int, ...]:
    """Return what writes global ids, and nothing of the rows."""
    nowhere = (0, 0, 0, int(by_position), *_GLOBAL, *_NO_TABLE)
    return ids.data_ptr(), ids.stride(0), *nowhere


def _table(to: Emission) -> tuple[int, ...]:
    if to.table is None:
        return _NO_TABLE
    pages = to.table.pages
    where = (pages.data_ptr(), *pages.stride(), *pages.shape)
    return *where, *integers(to.table.requests), min(to.table.page_size, _MOST)
