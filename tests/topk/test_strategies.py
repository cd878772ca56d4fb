"""Every strategy against the oracle and bit by bit against every other, over every dimension."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from tests.oracle import Ints
from tests.topk.cases import Case
from tests.topk.lemma import WORST, dealt
from tests.topk.scores import KINDS, drawn, drawn_lengths
from tests.topk.test_sweep import INTERLEAVES, SEGMENTS, SIZES, build
from tests.topk.variants import Variant, check_variants, variants

OUTPUTS = ("local", "global", "local", "slots")
ORDERS = ("score", "position")
ROWS = {1: 500, 2: 500, 12: 450, 37: 300, 64: 200, 512: 16, 1000: 8, 1024: 6}
LARGE = {2044: 3, 2048: 5, 2051: 3}
Point = tuple[int, int, str, str]


def points(ks: dict[int, int]) -> Iterator[Point]:
    """(p, K, output, order), outputs and orders in turn."""
    turns = itertools.cycle(itertools.product(OUTPUTS, ORDERS))
    for size, k in itertools.product(SIZES, ks):
        for _ in range(2):
            yield (size, k, *next(turns))


QUICK = [*points(ROWS), *points(LARGE)]
FULL = list(itertools.product(SIZES, {**ROWS, **LARGE}, ("global", "local", "slots"), ORDERS))


def case_of(point: Point, n: int) -> Case:
    """The n-th case at a point; slots need a small cache, so ids start at 0 there."""
    size, k, output, order = point
    interleave, cuts = INTERLEAVES[n % 5], SEGMENTS[n % 2]
    case = build(size, k, interleave, {**ROWS, **LARGE}[k], cuts, n)
    case = replace(case, output=output, order=order)
    if output == "slots":
        case = replace(case, rounds=0, longest=int(case.lengths.max(initial=0)) if n % 3 else None)
    return case


def checks(each: Sequence[Point]) -> int:
    """How many (row, strategy) checks the points come to."""
    rows = {**ROWS, **LARGE}
    return sum(rows[k] * len(list(variants(output, k))) for _, k, output, _ in each)


def test_the_sweep_makes_a_hundred_thousand_checks() -> None:
    """Counted."""
    assert checks(QUICK) >= 100_000
    assert checks(FULL) >= 400_000


@pytest.mark.parametrize("k", [*ROWS, *LARGE])
@pytest.mark.parametrize("size", SIZES)
def test_all_strategies_equal_the_oracle(size: int, k: int) -> None:
    """Ids, counts and certificates, by every strategy, transport and block."""
    for n, point in enumerate(QUICK):
        if point[:2] == (size, k):
            assert check_variants(case_of(point, n)) > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("k", [*ROWS, *LARGE])
@pytest.mark.parametrize("size", SIZES)
def test_all_strategies_equal_the_oracle_everywhere(size: int, k: int) -> None:
    """Every output in every order."""
    for n, point in enumerate(FULL):
        if point[:2] == (size, k):
            assert check_variants(case_of(point, 1000 + n)) > 0


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_case_by_every_strategy(data: st.DataObject) -> None:
    """Rows around chunks and owners, lists with other tie rules, tiny K."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    size, k = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 20))
    rows, length = data.draw(st.integers(0, 13)), data.draw(st.integers(0, 90))
    case = Case(
        drawn(data.draw(st.sampled_from(list(KINDS))), rows, length, rng),
        drawn_lengths(rows, length, k, rng),
        size,
        k,
        data.draw(st.integers(1, 5)),
        output=data.draw(st.sampled_from(["global", "local", "slots"])),
        order=data.draw(st.sampled_from(ORDERS)),
        mask_neg_inf=data.draw(st.booleans()),
        chunk_rows=data.draw(st.none() | st.integers(1, 9)),
        segments=tuple(data.draw(st.lists(st.integers(1, 4), max_size=3))),
        tie=data.draw(st.sampled_from(["low", "high", "random"])),
        seed=int(rng.integers(2**31)),
    )
    check_variants(case)


@pytest.mark.parametrize("output", ["local", "global"])
@pytest.mark.parametrize(("k", "size"), [(12, 3), (37, 8), (40, 2), (40, 5), (11, 4), (64, 1)])
def test_the_lemma_at_its_bounds(k: int, size: int, output: str) -> None:
    """Rows that reach the window's end, the most keys above x, and the most without one."""
    rng = np.random.default_rng(k)
    blocks = [*range(1, k + 1)] * 2
    rows = [make(rng, k, size, block) for block in blocks for make in WORST]
    scores = dealt(rows)
    case = Case(scores, np.full(len(rows), scores.shape[1]), size, k, output=output, chunk_rows=50)
    assert check_variants(case) > 0


@pytest.mark.parametrize("output", ["global", "local"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_repeated_ids_never_lead_out_of_bounds(size: int, output: str) -> None:
    """A racy local kernel lists tokens twice: every strategy still does the same, within bounds."""
    k, rows, interleave = 16, 60, 3

    def fn(comm: Communicator, variant: Variant) -> tuple[Ints, Ints]:
        rng = np.random.default_rng(comm.rank)
        ids = torch.from_numpy(rng.integers(-1, rng.integers(1, 9), (rows, k))).int()
        scores = torch.from_numpy(rng.integers(0, rng.integers(1, 4), (rows, k))).float()
        strategy, options = variant
        merge = TopKMerge(
            comm, k, rows, interleave, strategy, output, chunk_rows=13, options=options
        )
        out = MergeResult.allocate(rows, k, "cpu")
        wide = torch.full((rows, k + 2), 77, dtype=torch.int32)
        result = merge(scores, ids, out=MergeResult(wide[:, :k], out.counts, out.certified))
        assert (wide[:, k:] == 77).all()
        packed = ids.long().amax(1, keepdim=True)
        most = size * interleave * 9 if output == "global" else packed
        assert (result.ids <= most).all()
        assert torch.equal((result.ids >= 0).sum(1).int(), result.counts)
        assert ((result.ids[:, :-1] >= 0) | (result.ids[:, 1:] < 0)).all()
        return result.ids.numpy(), result.counts.numpy()

    first, *others = (run_ranks(fn, size, each) for each in variants(output, k))
    for each in others:
        for (ids, counts), (other_ids, other_counts) in zip(first, each, strict=True):
            np.testing.assert_array_equal(ids, other_ids)
            np.testing.assert_array_equal(counts, other_counts)
    every = np.stack([counts for _, counts in first])
    total = every[0] if output == "global" else every.sum(0)
    assert (total <= k).all()
    assert (total == k).any()
