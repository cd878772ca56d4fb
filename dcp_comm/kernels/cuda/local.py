"""The exact top-K of rows of logits by CUDA kernels: nothing synchronises.

One block finds a row's winners, among what its registers hold or in one pass over its logits. Where
rows are few and long, several blocks list what may win of their part of a row, and one joins their
lists. What comes out depends on the logits alone.
"""

from functools import cache

import torch
from torch import Tensor

from dcp_comm.kernels.cuda.arguments import DTYPES, integers
from dcp_comm.kernels.cuda.blocks import selector
from dcp_comm.kernels.cuda.launcher import Launcher, cuda_launcher

THREADS = {2048: 512, 4096: 1024}
"""Threads of a block that finds up to so many winners, as the sources have it."""

MAX_K = max(THREADS)

SHORT = {2048: (2, 4, 8), 4096: (2, 4)}
"""Multiples of so many columns that a block's registers hold; each has its own kernel."""

_COLUMNS_A_THREAD = 16
_JOINERS = 1024  # threads of a block that joins lists
_MOST_PARTS = 32
_THREADS_AT_ONCE = 1024  # of a multiprocessor, by the registers that they need


def local_topk(
    logits: Tensor,
    starts: Tensor | None,
    lengths: Tensor | None,
    mask_neg_inf: bool,
    out: tuple[Tensor, Tensor],
) -> None:
    """Do what `dcp_comm.local_topk` does, for checked arguments on CUDA and K up to `MAX_K`.

    Scratch is allocated as torch does, and a copy of logits that have gaps between columns.
    """
    (rows, width), device, (scores, ids) = logits.shape, logits.device, out
    if width > 1 and logits.stride(1) != 1:
        logits = logits.contiguous()
    k = ids.shape[1]
    parts = parts_of_a_row(rows, width, k, _multiprocessors(device))
    scratch = logits.new_empty((rows, parts, 2 * k + 1), dtype=torch.int64)
    write_topk(
        cuda_launcher(device.index),
        scores,
        ids,
        logits,
        starts,
        lengths,
        mask_neg_inf=mask_neg_inf,
        scratch=scratch,
    )


def write_topk(
    launcher: Launcher,
    scores: Tensor,
    ids: Tensor,
    logits: Tensor,
    starts: Tensor | None,
    lengths: Tensor | None,
    *,
    mask_neg_inf: bool,
    scratch: Tensor,
) -> None:
    """Write each row's K best columns, as `dcp_comm.local_topk` gives them; nothing is allocated.

    Args:
        launcher: Launches the kernels.
        scores: float32 (T, K), K at most `MAX_K`, contiguous, overwritten.
        ids: int32 (T, K), contiguous, overwritten.
        logits: float32, bfloat16 or float16 (T, N), unit stride within a row. Only the columns that
            are a row's own are read.
        starts: int32 or int64 (T,), first column of each row; None for 0.
        lengths: int32 or int64 (T,), columns of each row; None for all.
        mask_neg_inf: Whether -inf is padding.
        scratch: int64 (T, P, 2 K + 1), contiguous, overwritten: for P blocks that share a row, at
            most a warp's lanes; P is 0 where one does it alone.
    """
    (rows, parts, _), (width, k) = scratch.shape, (logits.shape[1], ids.shape[1])
    if rows == 0:
        return
    capacity = _capacity(k)
    threads = THREADS[capacity]
    where = (logits.data_ptr(), logits.stride(0), width, DTYPES[logits.dtype])
    columns = (*where, *integers(starts), *integers(lengths))
    args = (*columns, k, int(mask_neg_inf))
    winners = (scores.data_ptr(), ids.data_ptr())
    if not parts:
        short = _multiple(width, k)
        name = f"topk_short_{capacity}_{short}" if short else f"topk_{capacity}"
        block = selector(capacity, short) if short else (threads, _shared_bytes(capacity, threads))
        launcher.launch(name, (rows, 1), *block, *args, *winners)
        return
    words = scratch.data_ptr()
    lists = (words, words + 8 * rows * parts * 2 * k, parts)
    listing = (parts, rows), threads, _shared_bytes(capacity, threads)
    launcher.launch(f"topk_list_{capacity}", *listing, *args, *lists)
    joining = (rows, 1), _JOINERS, _shared_bytes(capacity, _JOINERS)
    launcher.launch(f"topk_join_{capacity}", *joining, *args, *lists, *winners)


def parts_of_a_row(rows: int, width: int, k: int, multiprocessors: int) -> int:
    """Return how many blocks share a row; 0 if one does it alone.

    A second kernel pays where rows alone would leave half of the multiprocessors idle, unless a
    block's registers hold a row.
    """
    if rows == 0 or 2 * rows > multiprocessors or _multiple(width, k):
        return 0
    threads = THREADS[_capacity(k)]
    tiles = -(-width // (_COLUMNS_A_THREAD * threads))
    parts = min(multiprocessors * _THREADS_AT_ONCE // threads // rows, tiles, _MOST_PARTS)
    return parts if parts > 1 else 0


def _multiple(width: int, k: int) -> int:
    """Return the least of `SHORT` that is enough for a row; 0 if none is."""
    capacity = _capacity(k)
    return next((each for each in SHORT[capacity] if width <= each * capacity), 0)


def _shared_bytes(capacity: int, threads: int) -> int:
    """Shared memory of a block, as the sources assert it."""
    return 16 * capacity + 32 * threads + 2048


def _capacity(k: int) -> int:
    return next(each for each in THREADS if k <= each)


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
