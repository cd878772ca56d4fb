"""The merge's arithmetic as torch operations, for every device.

A *run* is a row's K keys of one rank in descending order; runs of p ranks are int64 (p, rows, K),
rank-major as an all-gather leaves them. The winners of a rank are a prefix of its run, so that
selecting means finding p prefix lengths a row. Shapes never depend on data and nothing is read back
to the host. Temporaries are bounded by working on blocks of 64 rows: in a merge with chunks of R
rows they stay below ``64 * (K * (64 + 8 p) + 32 p^2) + (48 + 32 p) * R`` bytes.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import BEST, MAX_ID, PAD, encode, id_words, ids_of, score_words

BLOCK_ROWS = 64
_LEAST_ID_WORD = 0xFFFFFFFF - MAX_ID


def row_blocks(rows: int, size: int = BLOCK_ROWS) -> Iterator[slice]:
    """Yield the slices that cover ``rows`` rows in order, ``size`` at a time."""
    for first in range(0, rows, size):
        yield slice(first, min(first + size, rows))


def pack(
    run: Tensor,
    scores: Tensor,
    ids: Tensor,
    lengths: Tensor | None,
    *,
    shard: Shard,
    mask_neg_inf: bool,
    ordered: bool = True,
) -> None:
    """Write one rank's candidates' keys.

    Args:
        run: int64 (rows, K), overwritten.
        scores: float32 (rows, K), any order.
        ids: int32 (rows, K), local positions; below 0 is padding.
        lengths: Integer (rows,), local lengths: positions at or beyond them are padding.
        shard: What makes local positions global ids.
        mask_neg_inf: Whether -inf is padding too.
        ordered: In descending order; otherwise as the candidates come.
    """
    for rows in row_blocks(run.shape[0]):
        local = _existing(ids[rows], lengths, rows)
        keys = encode(scores[rows], shard.global_index(local), mask_neg_inf=mask_neg_inf)
        _write(run[rows], keys, ordered)


def pack_logits(
    run: Tensor,
    logits: Tensor,
    ids: Tensor,
    row_starts: Tensor | None,
    lengths: Tensor | None,
    *,
    shard: Shard,
    mask_neg_inf: bool,
    ordered: bool = True,
) -> None:
    """`pack`, with the scores looked up in logits (rows, width) of any float dtype up to 32 bits.

    A score stands in column ``id + row_start``; an id whose column does not exist is padding.
    """
    width = logits.shape[1]
    if width == 0:
        run.fill_(PAD)
        return
    for rows in row_blocks(run.shape[0]):
        local = _existing(ids[rows], lengths, rows)
        column = local if row_starts is None else local + row_starts[rows, None]
        scores = logits[rows].detach().gather(1, column.clamp(0, width - 1)).to(torch.float32)
        local = local.masked_fill((column < 0) | (column >= width), -1)
        keys = encode(scores, shard.global_index(local), mask_neg_inf=mask_neg_inf)
        _write(run[rows], keys, ordered)


def copy_splitters(splitters: Tensor, run: Tensor, block: int) -> None:
    """Write each ``block``-th key of run (rows, K), and the last, to (rows, ceil(K / block))."""
    inner = splitters.shape[1] - 1
    splitters[:, :inner] = run[:, block - 1 :: block][:, :inner]
    splitters[:, inner] = run[:, -1]


def sort_lists(lists: Tensor) -> None:
    """Make runs of lists (p, rows, K), in place."""
    for run in lists:
        for rows in row_blocks(len(run)):
            run[rows] = run[rows].sort(dim=1, descending=True).values


def copy_windows(windows: Tensor, run: Tensor, starts: Tensor) -> None:
    """Write the W keys of each run from ``starts`` on to (rows, W), none from outside the run."""
    width = windows.shape[1]
    starts = starts.clamp(0, run.shape[1] - width)
    within = torch.arange(width, device=run.device)
    for rows in row_blocks(run.shape[0]):
        torch.gather(run[rows], 1, starts[rows, None] + within, out=windows[rows])


def prefix_lengths(runs: Tensor, t: int) -> Tensor:
    """Return int64 (p, rows): how many of the ``t`` largest valid keys each run begins with.

    Their sum is t, or all valid keys where there are fewer. A binary search in each run at once:
    a prefix of length a wins if its last key has fewer than t keys of all runs before it.

    Args:
        runs: int64 (p, rows, n), each row descending; no key but `PAD` in two runs.
        t: At least 0.
    """
    lengths = torch.empty(runs.shape[:2], dtype=torch.int64, device=runs.device)
    for rows in row_blocks(runs.shape[1]):
        lengths[:, rows] = _prefix_lengths(runs[:, rows], t)
    return lengths


def _prefix_lengths(runs: Tensor, t: int) -> Tensor:
    size, rows, n = runs.shape
    ascending = ~runs
    lengths = runs.new_zeros(size, rows)
    for bit in reversed(range(n.bit_length())):
        longer = lengths + (1 << bit)
        last = _key_at(runs, longer - 1)
        before = torch.searchsorted(ascending, ~last.T.repeat(size, 1, 1))
        # Counted in its own run by position: keys repeated there must not win beyond t.
        before.diagonal(dim1=0, dim2=2).copy_((longer - 1).T)
        wins = (longer <= n) & (last > PAD) & (t > before.sum(0).T)
        lengths = torch.where(wins, longer, lengths)
    return lengths


def _key_at(runs: Tensor, index: Tensor) -> Tensor:
    """Return (p, rows) keys at ``index`` (p, rows), clamped into the runs."""
    index = index.clamp(0, runs.shape[2] - 1)
    return runs.gather(2, index[..., None])[..., 0]


def count_ge(runs: Tensor, key: int) -> Tensor:
    """Return int64 (p, rows): how many integers of each row (p, rows, n) are not below ``key``."""
    counts = torch.empty(runs.shape[:2], dtype=torch.int64, device=runs.device)
    for rows in row_blocks(runs.shape[1]):
        counts[:, rows] = (runs[:, rows] >= key).sum(2)
    return counts


def threshold(runs: Tensor, lengths: Tensor, t: int) -> Tensor:
    """Return int64 (rows,): the t-th largest key, given `prefix_lengths`; `PAD` if there is none.

    For t = 0 it is the largest integer, above every key.
    """
    if t == 0:
        return runs.new_full((runs.shape[1],), BEST)
    last = _key_at(runs, lengths - 1).masked_fill(lengths == 0, BEST)
    return last.amin(0).masked_fill(lengths.sum(0) < t, PAD)


def certify(runs: Tensor, threshold: Tensor) -> Tensor:
    """Return bool (rows,): no key that a run was cut short of could tie with ``threshold`` (rows,).

    So it is where every run ends in padding, or in a score strictly below the threshold's.
    """
    last = runs[:, :, -1]
    return ((last == PAD) | (score_words(last) < score_words(threshold))).all(0)


def verdicts(lengths: Tensor, certified: Tensor) -> Tensor:
    """Return prefix lengths int64 (p, rows) with the rows' certificates (rows,) in the sign."""
    return torch.where(certified, lengths, ~lengths)


def read_verdicts(verdicts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lengths and certificates that `verdicts` joined."""
    return verdicts.maximum(~verdicts), verdicts >= 0


def seal(ids: Tensor, certified: Tensor) -> None:
    """Write certificates (rows,) into sorted global ids int32 (rows, K): the last becomes -2 - id.

    A row with padding at its end needs no mark: it holds every valid candidate. The one id without
    a partner is the largest, whose row passes for uncertified.
    """
    last = ids[:, -1]
    last.copy_(torch.where(certified & (last >= 0) & (last < MAX_ID), -2 - last, last))


def unseal(ids: Tensor) -> Tensor:
    """Return the certificates bool (rows,) that `seal` wrote, and restore the ids."""
    last = ids[:, -1]
    certified = last < 0
    last.copy_(torch.where(last < -1, -2 - last, last))
    ids.clamp_(min=-1)
    return certified


def emit(
    ids: Tensor, runs: Tensor, lengths: Tensor, *, by_position: bool, shard: Shard | None
) -> None:
    """Write the ids of the winners, -1 behind them.

    Args:
        ids: int32 (rows, K), any row stride, overwritten.
        runs: int64 (q, rows, n), descending.
        lengths: int64 (q, rows), how long a prefix of each run wins; what exceeds K in all is cut.
        by_position: Ascending by id; otherwise descending by key.
        shard: Whose local positions to write; None for global ids.
    """
    for rows in row_blocks(ids.shape[0]):
        keys = _compact(runs[:, rows], lengths[:, rows], ids.shape[1])
        # No key that `encode` makes, but maybe a peer: an id out of range never wins.
        keys = keys.masked_fill(id_words(keys) < _LEAST_ID_WORD, PAD)
        if by_position:
            keys = id_words(keys)
        if by_position or runs.shape[0] > 1:
            keys = keys.sort(dim=1, descending=True).values
        winners = ids_of(keys)
        ids[rows] = winners if shard is None else shard.local_index(winners)


def _compact(runs: Tensor, lengths: Tensor, k: int) -> Tensor:
    """Return (rows, k): the prefixes one after another, `PAD` behind them."""
    size, rows, _ = runs.shape
    ends = lengths.cumsum(0)
    slot = torch.arange(k, device=runs.device)
    run = (slot >= ends[..., None]).sum(0)
    run_or_last = run.clamp(max=size - 1)
    index = slot - (ends - lengths).T.gather(1, run_or_last)
    row = torch.arange(rows, device=runs.device)[:, None]
    keys = runs[run_or_last, row, index.clamp(0, runs.shape[2] - 1)]
    return keys.masked_fill(run == size, PAD)


def _existing(ids: Tensor, lengths: Tensor | None, rows: slice) -> Tensor:
    """Return the positions in 64 bits, -1 where the row has none such."""
    local = ids.to(torch.int64)
    return local if lengths is None else local.masked_fill(local >= lengths[rows, None], -1)


def _write(run: Tensor, keys: Tensor, ordered: bool) -> None:
    run.copy_(keys.sort(dim=1, descending=True).values if ordered else keys)


def to_slots(ids: Tensor, table: Tensor, requests: Tensor | None, page_size: int) -> None:
    """Replace local positions by slots of a paged cache.

    Position j is in slot ``table[request, j // page_size] * page_size + j % page_size``.

    Args:
        ids: int32 (rows, K), any row stride, overwritten; -1 stays.
        table: int32 (R, pages), any row stride. A position beyond it becomes -1, and so does one
            whose page is negative or whose slot is beyond int32.
        requests: Integer (rows,), each row's row of the table; None for its own. Rows of requests
            that the table does not have become -1.
        page_size: Tokens a page.
    """
    if table.numel() == 0:
        ids.fill_(-1)
        return
    if requests is None:
        requests = torch.arange(ids.shape[0], device=ids.device)
    for rows in row_blocks(ids.shape[0]):
        local, request = ids[rows].to(torch.int64), requests[rows, None]
        page = local // page_size
        exists = (page >= 0) & (page < table.shape[1])
        exists &= (request >= 0) & (request < table.shape[0])
        row, column = request.clamp(0, table.shape[0] - 1), page.clamp(0, table.shape[1] - 1)
        block = table[row, column].to(torch.int64)
        slots = block * page_size + local % page_size
        ids[rows] = slots.masked_fill(~exists | (block < 0) | (slots > MAX_ID), -1)
