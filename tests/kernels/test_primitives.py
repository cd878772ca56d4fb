"""Every kernel, run on the CPU in several orders of its threads, does what torch operations do."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from dcp_comm.kernels.cuda import primitives as cuda
from dcp_comm.kernels.cuda.primitives import CudaPrimitives
from dcp_comm.kernels.cuda.sources import read_all
from dcp_comm.kernels.primitives import Emission, Primitives
from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import BEST, PAD, ids_of
from tests.kernels.both import SCORES, Both, Point
from tests.kernels.checks import (
    CHECKS,
    check_every_half,
    check_merges,
    check_pack,
    check_selection,
    check_the_largest_id,
)
from tests.kernels.emulated import Loads, emulator_for, needs_compiler
from tests.kernels.simt.emulator import LITTLE_SHARED, MOST_SHARED
from tests.kernels.simt.guards import unreadable

pytestmark = needs_compiler

SIZES = (1, 2, 3, 4, 5, 8)
INTERLEAVES = (1, 3, 16, 64, 2**31 - 1)
POISONS = (0xFF, 0xA5)
ORDERS = (0, 1, 7)  # of threads: in turn, the latest first, at random

Check = Callable[[Both], None]


def points(ks: Sequence[int], first: int = 0) -> Iterator[Point]:
    """Every kind of scores with every K; what else there is, in turns of different lengths."""
    for at, (kind, k) in enumerate(itertools.product(SCORES, ks), first):
        yield Point(
            kind,
            k,
            SIZES[(at // len(ks) + at % len(ks)) % len(SIZES)],
            interleave=INTERLEAVES[at // 3 % len(INTERLEAVES)],
            by_position=bool(at % 2),
            poison=POISONS[at // 2 % len(POISONS)],
            seed=at,
        )


QUICK = list(points((8, 37, 300, 512)))
WIDE = [each for first in range(3) for each in points((513, 1024, 2048, 3001, 4096), 1000 * first)]


def both_of(point: Point) -> Both:
    """On a GPU with little shared memory, or with much."""
    emulator = emulator_for(point.k, ORDERS[point.seed % len(ORDERS)])
    emulator.shared_bytes = LITTLE_SHARED if point.seed % 2 else MOST_SHARED
    return Both(emulator, point)


def test_the_points_meet_every_value_of_every_dimension() -> None:
    for each in (QUICK, WIDE):
        assert {point.size for point in each} == set(SIZES)
        assert {point.interleave for point in each} == set(INTERLEAVES)
        met = {(point.by_position, point.poison, point.seed % 3) for point in each}
        assert len(met) == 2 * len(POISONS) * len(ORDERS)


@pytest.mark.parametrize("point", QUICK, ids=str)
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_do_what_torch_does(
    check: Check, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where blocks search several rows, and warps emit more than one span."""
    monkeypatch.setattr(cuda, "_SEARCHED", (132, 1, 2)[point.seed % 3])
    monkeypatch.setattr(cuda, "_EMITTERS", (8448, 1, 3)[point.seed % 3])
    check(both_of(point))


@pytest.mark.parametrize("k", [16, 100])
def test_the_largest_number_stays_in_its_row(k: int) -> None:
    """No score makes it; a spoiled peer may send it."""
    for size, order in itertools.product((2, 3), ORDERS):
        both = Both(emulator_for(k, order), Point("normal", k, size, rows=5, seed=k))
        runs = both.runs()
        runs[0, 1, 0] = runs[size - 1, 3, 0] = BEST
        both.emit_equally(merge_all(runs), None)
        both.equal(seal_all(runs), *(5, k), dtype=torch.int32)


@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("kind", ["normal", "plateau", "skewed"])
def test_selection_of_any_number_of_lists(kind: str, size: int) -> None:
    for k, by_position in itertools.product((37, 512), (False, True)):
        point = Point(kind, k, size, by_position=by_position, seed=size + k)
        check_selection(both_of(point))


def test_lists_that_begin_at_no_multiple_of_two_keys() -> None:
    """Two keys are read at once only where they may be."""
    k, size, rows = 512, 4, 3
    both = Both(emulator_for(k, 1), Point("normal", k, size, rows=rows))
    lists = both.runs().flip(2)
    shifted = torch.empty(lists.numel() + 1, dtype=torch.int64)[1:].view_as(lists)
    for given in (lists.contiguous(), shifted):
        assert (given.data_ptr() % 16 == 0) == (given is not shifted)

        def select(way: Primitives, to: Emission, given: torch.Tensor = given) -> None:
            way.select(given.copy_(lists), None, to)

        both.emit_equally(select, None)


@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_keys_that_ranks_share_leave_no_place_unwritten(size: int, by_position: bool) -> None:
    """As a spoiled peer may send them: which win is left open, but not that some do."""
    for seed in range(3):
        point = Point("normal", 16, size, rows=5, by_position=by_position, seed=size + seed)
        both = Both(emulator_for(16, ORDERS[seed]), point, alone=True)
        runs = both.runs()
        runs[1:, 2] = runs[0, 2]
        for write in (merge_all(runs), select_all(runs)):
            found = both.emit_equally(write, None).ids[2]
            assert torch.isin(
                found, torch.cat([ids_of(runs[0, 2]).int(), found.new_tensor([-1])])
            ).all()


def merge_all(runs: torch.Tensor) -> Callable[[Primitives, Emission], None]:
    return lambda way, to: way.merge_runs(runs, None, to)


def select_all(lists: torch.Tensor) -> Callable[[Primitives, Emission], None]:
    return lambda way, to: way.select(lists, None, to)


def seal_all(runs: torch.Tensor) -> Callable[[Primitives, torch.Tensor], None]:
    return lambda way, ids: way.merge_sealed(runs, ids, by_position=False)


@pytest.mark.parametrize("kind", SCORES)
def test_few_candidates_of_many_rows_are_sorted(kind: str) -> None:
    """So few that a row's scores are often all equal, or an ulp apart, beside padding."""
    for seed, (k, size) in enumerate(itertools.product((8, 12), (1, 3))):
        point = Point(kind, k, size, rows=40, by_position=bool(seed % 2), seed=seed)
        for check in (check_pack, check_merges, check_selection):
            check(Both(emulator_for(k, ORDERS[seed % len(ORDERS)]), point))


@pytest.mark.parametrize("order", ORDERS)
def test_every_half_is_read_exactly(order: int) -> None:
    check_every_half(emulator_for(512, order), "cpu")


@pytest.mark.parametrize("by_position", [False, True])
def test_the_largest_id_passes_for_uncertified(by_position: bool) -> None:
    check_the_largest_id(emulator_for(16, 0), "cpu", by_position=by_position)


def test_padding_rows_never_read_their_logits() -> None:
    """Of length 0, or without an id that exists; the logits cannot be read."""
    k, rows = 512, 4
    logits, starts = unreadable(rows, 600, dtype=torch.bfloat16), torch.tensor([0, 7, -5, 599])
    ids = torch.arange(k, dtype=torch.int32).repeat(rows, 1)
    run = torch.empty(rows, k, dtype=torch.int64)
    kernels = CudaPrimitives(emulator_for(k, 0), k, 2)
    for stale, lengths in ((ids, torch.zeros(rows)), (~ids, None), (ids + (2**31 - k), None)):
        told = None if lengths is None else lengths.long()
        columns = (logits, stale, starts, told)
        for ordered in (True, False):
            kernels.pack_logits(
                run.fill_(7), *columns, shard=Shard(1, 2, 16), mask_neg_inf=True, ordered=ordered
            )
            assert (run == PAD).all()


def test_prepare_loads_the_source_of_every_launch() -> None:
    units = {name: source.path.stem for source in read_all() for name in source.kernels}
    loaded = Loads()
    CudaPrimitives(loaded, 37, 3).prepare()
    emulator = emulator_for(37, 0)
    del emulator.launches[:]
    for check, order in itertools.product(CHECKS, (False, True)):
        check(Both(emulator, Point("normal", 37, 3, by_position=order)))
    assert {units[name] for name in emulator.launches} == {units[name] for name in loaded.names}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("check", CHECKS)
def test_nothing_in_them_is_undefined(check: Check, order: int) -> None:
    """The same points, in every order, where an index out of bounds or an overflow is an error."""
    for point in QUICK:
        check(Both(emulator_for(point.k, order, sanitize=True), point))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_number_overflows_in_them() -> None:
    check_every_half(emulator_for(512, 0, sanitize=True), "cpu")
    for by_position in (False, True):
        check_the_largest_id(emulator_for(16, 0, sanitize=True), "cpu", by_position=by_position)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("k", sorted({point.k for point in WIDE}))
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_of_every_capacity_do_what_torch_does(check: Check, k: int) -> None:
    for point in WIDE:
        if point.k == k:
            check(both_of(point))
