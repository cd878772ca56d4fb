"""Every primitive on drawn inputs, both ways; on whatever device a `Both` runs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dcp_comm.kernels.cuda.launcher import Launcher
from dcp_comm.kernels.lemma import SplitterShape, splitter_shape
from dcp_comm.kernels.primitives import Emission, Primitives, Splitters
from dcp_comm.kernels.torch_ops import copy_splitters
from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import MAX_ID
from tests.kernels.both import Both, Point

Write = Callable[[Primitives, Tensor], object]
Emit = Callable[[Primitives, Emission], None]

LOGITS = (torch.float32, torch.bfloat16, torch.float16)


def check_pack(both: Both) -> None:
    """`pack` on the first and the last rank."""
    for rank in sorted({0, both.point.size - 1}):
        _check_pack(both, rank, both.point.seed + rank)


def _check_pack(both: Both, rank: int, turn: int) -> None:
    rows, k = both.point.rows, both.point.k
    (ids, lengths), shard = both.candidates(), both.shard(rank)
    columns = both.give(both.scores(k), turn % 3), both.give(ids, turn % 2)
    told = both.integers(lengths, turn)
    how: dict[str, Any] = {"shard": shard, "mask_neg_inf": bool(turn % 2)}
    run = both.equal(lambda way, run: way.pack(run, *columns, told, **how), rows, k)
    both.equal(lambda way, to: way.pack(to, *columns, told, **how, ordered=False), rows, k)
    block = (32, 3, k, 1)[turn % 4]
    both.equal(
        lambda way, to: way.pack(run, *columns, told, **how, splitters=Splitters(to, block)),
        *(rows, -(-k // block)),
    )


def check_pack_in_order(both: Both) -> None:
    """`pack` of rows in order, as a local top-K leaves them, and with two neighbours changed."""
    rows, k, rank = both.point.rows, both.point.k, both.point.size - 1
    scores = both.scores(k).sort(dim=1, descending=True).values
    ids = torch.arange(k, dtype=torch.int32).repeat(rows, 1)
    for first in (None, 0, 30, k // 2, k - 2):
        order = torch.arange(k)
        if first is not None:
            order[[first % k, (first + 1) % k]] = order[[(first + 1) % k, first % k]]
        columns = both.give(scores[:, order]), both.give(ids[:, order])
        both.equal(_pack_lists(*columns, both.shard(rank)), rows, k)


def _pack_lists(scores: Tensor, ids: Tensor, shard: Shard) -> Write:
    return lambda way, run: way.pack(run, scores, ids, None, shard=shard, mask_neg_inf=True)


def check_pack_logits(both: Both) -> None:
    """`pack_logits` from each dtype."""
    for each, dtype in enumerate(LOGITS):
        _check_pack_logits(both, dtype, each % both.point.size, both.point.seed + each)


def _check_pack_logits(both: Both, dtype: torch.dtype, rank: int, turn: int) -> None:
    """With ids whose columns do not exist, starts before the first column, and no column at all."""
    rows, k = both.point.rows, both.point.k
    (ids, lengths), shard = both.candidates(), both.shard(rank)
    logits = both.scores(2 * k + 5 if turn % 7 else 0).to(dtype)
    near = both.rng.integers(-3, 8, rows)
    far = both.rng.choice([2**31 - 1, -(2**31), k], rows)
    starts = both.integers(far if turn % 5 == 0 else near, turn + 1)
    columns = both.give(logits, turn % 4), both.give(ids, turn % 2), starts
    told = both.integers(lengths, turn)
    how: dict[str, Any] = {"shard": shard, "mask_neg_inf": bool(turn % 2)}
    run = both.equal(lambda way, run: way.pack_logits(run, *columns, told, **how), rows, k)
    both.equal(lambda way, to: way.pack_logits(to, *columns, told, **how, ordered=False), rows, k)
    both.equal(
        lambda way, to: way.pack_logits(run, *columns, told, **how, splitters=Splitters(to, 16)),
        *(rows, -(-k // 16)),
    )


def check_merges(both: Both) -> None:
    """`merge_runs` of all and of one; `merge_sealed` and `unseal`."""
    point, runs = both.point, both.runs()
    for own in (None, point.seed % point.size):
        table = None if own is None or point.seed % 2 else both.table(point.seed)
        both.emit_equally(_merge_runs(runs, own), own, table)
    shape = point.rows, point.k
    sealed = both.equal(_seal(runs, point.by_position), *shape, dtype=torch.int32)
    both.emit_equally(lambda way, to: way.unseal(sealed, to), None)


def _merge_runs(runs: Tensor, own: int | None) -> Emit:
    return lambda way, to: way.merge_runs(runs, own, to)


def check_selection(both: Both) -> None:
    """`select` of all and of one, and `select_sealed`, of lists that hold what runs do."""
    point, runs = both.point, both.runs()
    order = torch.from_numpy(both.rng.random(tuple(runs.shape))).argsort(dim=2)
    lists = runs.cpu().gather(2, order)
    for own in (None, point.seed % point.size):
        table = None if own is None or point.seed % 2 else both.table(point.seed)
        both.emit_equally(_select(both, lists, own), own, table)
    shape = point.rows, point.k
    both.equal(_select_sealed(both, lists, point.by_position), *shape, dtype=torch.int32)


def _select(both: Both, lists: Tensor, own: int | None) -> Emit:
    return lambda way, to: way.select(both.give(lists.clone()), own, to)


def _select_sealed(both: Both, lists: Tensor, by_position: bool) -> Write:
    return lambda way, ids: way.select_sealed(
        both.give(lists.clone()), ids, by_position=by_position
    )


def check_owned(both: Both) -> None:
    """`settle`; `emit_own` of what it told, of all that is valid, of more, of nothing."""
    point, runs = both.point, both.runs()
    verdicts = both.equal(lambda way, out: way.settle(runs, out), point.size, point.rows)
    rank = point.seed % point.size
    for turn, told in enumerate((None, verdicts[rank], None, verdicts[rank])):
        table = None if turn == 3 else both.table(point.seed + turn)
        both.emit_equally(_emit_own(runs[rank], told), rank, table)
    for length in (point.k + 3, -1):
        both.emit_equally(_emit_own(runs[0], torch.full_like(verdicts[0], length)), 0)
    _check_without_a_tail(both, runs[rank], verdicts[rank], rank)


def _check_without_a_tail(both: Both, run: Tensor, verdicts: Tensor, rank: int) -> None:
    """The same winners; behind them -1, or what was there."""
    whole = both.emit_equally(_emit_own(run, verdicts), rank)
    bare = both.bare_emission(rank)
    before = bare.ids.clone()
    both.kernels.emit_own(run, verdicts, bare)
    assert torch.equal(bare.counts, whole.counts)
    behind = torch.arange(both.point.k, device=run.device) >= whole.counts[:, None]
    kept = behind & (bare.ids == before)
    assert torch.equal(bare.ids.masked_fill(kept, -1), whole.ids)


def _emit_own(run: Tensor, verdicts: Tensor | None) -> Emit:
    return lambda way, to: way.emit_own(run, verdicts, to)


def check_windows(both: Both) -> None:
    """What the splitter strategy does, with the default block and an odd one."""
    point, runs = both.point, both.runs()
    default = splitter_shape(point.k, point.size)
    odd = splitter_shape(point.k, point.size, (3, point.k, 1)[point.seed % 3])
    for shape in (default, odd) if both.kernels.fits(odd) else (default,):
        _check_windows(both, runs, shape)


def _check_windows(both: Both, runs: Tensor, shape: SplitterShape) -> None:
    drawn = runs.new_empty(*runs.shape[:2], shape.splitters)
    for to, run in zip(drawn, runs, strict=True):
        copy_splitters(to, run, shape.block)
    left: list[Tensor] = []

    def open_windows(way: Primitives, to: Tensor, own: int | None) -> None:
        left.append(both.give(drawn.clone()))
        way.open_windows(left[-1], to, own, shape)

    starts = _answers(both, open_windows)
    splitters = left[0]
    assert all(torch.equal(each, splitters) for each in left)
    windows = both.give(
        torch.stack(
            [
                _copied(both, _windows(run, both.give(start)), shape.window)
                for run, start in zip(runs, starts, strict=True)
            ]
        )
    )

    def close_windows(way: Primitives, to: Tensor, own: int | None) -> None:
        to.copy_(starts if own is None else starts[own : own + 1])
        way.close_windows(splitters, windows, to, own, shape)

    _answers(both, close_windows)


def _copied(both: Both, copy: Write, width: int) -> Tensor:
    return both.equal(copy, both.point.rows, width)


def _windows(run: Tensor, start: Tensor) -> Write:
    return lambda way, to: way.copy_windows(to, run, start)


def _answers(both: Both, answer: Callable[[Primitives, Tensor, int | None], object]) -> Tensor:
    """Ask for all runs at once, and for one alone."""
    size, rows = both.point.size, both.point.rows
    own = both.point.seed % size
    of_all = both.equal(lambda way, to: answer(way, to, None), size, rows)
    alone = both.equal(lambda way, to: answer(way, to, own), 1, rows)
    assert torch.equal(alone[0], of_all[own])
    return of_all


def check_every_half(launcher: Launcher, device: str) -> None:
    """Keys of every bfloat16 and float16 that there is."""
    k = 512
    for dtype in LOGITS[1:]:
        both = Both(launcher, Point("normal", k, 1, rows=2**16 // k), device)
        every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        logits = both.give(every.view(-1, k))
        ids = both.give(torch.arange(k, dtype=torch.int32).repeat(len(logits), 1))
        both.equal(_pack_all(logits, ids, both.shard(0)), *logits.shape)


def _pack_all(logits: Tensor, ids: Tensor, shard: Shard) -> Write:
    return lambda way, run: way.pack_logits(
        run, logits, ids, None, None, shard=shard, mask_neg_inf=False
    )


def check_the_largest_id(launcher: Launcher, device: str, *, by_position: bool) -> None:
    """Seals of full, certified rows whose last id is the largest there is, and another one.

    The largest has no partner to be marked by.
    """
    k = 16
    both = Both(launcher, Point("normal", k, 2, rows=2, by_position=by_position), device)
    last = (MAX_ID + 1) // 2 - 1
    ids = torch.arange(k, dtype=torch.int32).repeat(2, 1)
    ids[:, k // 2 - 1] = torch.tensor([last, last - 1])
    scores = torch.arange(k, 0, -1, dtype=torch.float32).repeat(2, 1)
    runs = torch.empty(2, 2, k, dtype=torch.int64)
    for rank, run in enumerate(runs):
        both.reference.pack(run, scores, ids, None, shard=both.shard(rank), mask_neg_inf=True)
    runs = both.give(runs)
    sealed = both.equal(_seal(runs, by_position), 2, k, dtype=torch.int32)
    assert sealed[:, -1].tolist() == [MAX_ID, -2 - (MAX_ID - 2)]
    emitted = both.emit_equally(lambda way, to: way.unseal(sealed, to), None)
    assert emitted.certified.tolist() == [False, True]
    assert emitted.ids[:, -1].tolist() == [MAX_ID, MAX_ID - 2]


def _seal(runs: Tensor, by_position: bool) -> Write:
    return lambda way, ids: way.merge_sealed(runs, ids, by_position=by_position)


CHECKS = (
    check_pack,
    check_pack_in_order,
    check_pack_logits,
    check_merges,
    check_selection,
    check_owned,
    check_windows,
)
