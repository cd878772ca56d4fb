"""The block-splitter lemma: its claims, its bounds and its sizes, and the primitives against it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.kernels import torch_ops as ops
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.topk.keys import PAD
from tests.oracle import Ints
from tests.topk import lemma
from tests.topk.lemma import WORST, sizes, splitter_x, splitters, tiers, winners

SHAPES = [
    *((2048, 2, 32), (2048, 4, 32), (2048, 8, 16), (1000, 5, 16), (2051, 3, 32), (2044, 8, 16)),
    *(
        (37, 3, 4),
        (37, 8, 2),
        (12, 3, 4),
        (12, 2, 12),
        (12, 4, 1),
        (10, 8, 7),
        (5, 1, 2),
        (1, 4, 1),
    ),
]


@st.composite
def some_lists(draw: st.DrawFn) -> tuple[list[Ints], int, int]:
    """Lists, K and B: short, long, one-sided, of distinct keys."""
    size, k = draw(st.integers(1, 8)), draw(st.integers(1, 60))
    block = draw(st.integers(1, k))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        return draw(st.sampled_from(WORST))(rng, k, size, block), k, block
    valid = np.minimum(rng.integers(0, k + 1 + k // 2, size), k) * rng.integers(0, 2, size)
    split = rng.integers(0, valid + 1)
    return tiers(rng, k, split.tolist(), (valid - split).tolist()), k, block


@settings(deadline=None, max_examples=600)
@given(some_lists())
def test_the_claims(case: tuple[list[Ints], int, int]) -> None:
    """What is settled wins, and the open winners are the W largest keys of the windows."""
    lists, k, block = case
    found, best = sizes(k, len(lists), block), winners(lists, k)
    x = splitter_x(lists, block, found.settled)
    if x == 0:
        assert len(best) < k
        assert sum(int((each > 0).sum()) for each in lists) == len(best)
        return
    settled = [int((splitters(each, block) >= x).sum()) for each in lists]
    assert sum(settled) == found.settled
    starts = [count * block for count in settled]
    assert all(start + found.window <= k for start in starts)
    sure = {int(key) for each, start in zip(lists, starts, strict=True) for key in each[:start]}
    assert sure <= best
    windows = [each[at : at + found.window] for each, at in zip(lists, starts, strict=True)]
    still_open = set() if found.window == 0 else winners(windows, found.window)
    assert best == sure | still_open
    last = min([x, *still_open])
    assert last == min(best, default=np.inf) or len(best) < k


@settings(deadline=None, max_examples=300)
@given(some_lists())
def test_the_primitives_find_the_same(case: tuple[list[Ints], int, int]) -> None:
    """Splitters, settled blocks, windows and threshold of the product, on the same lists."""
    lists, k, block = case
    size, found = len(lists), sizes(k, len(lists), block)
    shape = splitter_shape(k, size, block)
    assert (shape.settled, shape.window) == (found.settled, found.window)
    runs = torch.from_numpy(np.stack(lists)[:, None])
    runs = torch.where(runs == 0, PAD, runs)
    drawn = torch.full((size, 1, shape.splitters), 77)
    for rank, run in enumerate(runs):
        ops.copy_splitters(drawn[rank], run, block)
    want = np.stack([splitters(each, block) for each in lists])[:, None]
    np.testing.assert_array_equal(torch.where(drawn == PAD, 0, drawn), want)
    settled = ops.prefix_lengths(drawn, shape.settled)
    x = splitter_x(lists, block, found.settled)
    largest = ops.threshold(drawn, settled, shape.settled)
    assert largest.item() == {0.0: PAD, np.inf: 2**63 - 1}.get(x, x)
    if x == 0:
        return
    assert settled[:, 0].tolist() == [(splitters(each, block) >= x).sum() for each in lists]
    windows = torch.full((size, 1, shape.window), 77)
    for rank, run in enumerate(runs):
        ops.copy_windows(windows[rank], run, settled[rank] * block)
        at = int(settled[rank]) * block
        assert torch.equal(windows[rank], run[:, at : at + shape.window])


@pytest.mark.parametrize(("k", "size", "block"), SHAPES)
def test_the_window_is_tight(k: int, size: int, block: int) -> None:
    """On one rank all W open winners stand in a row, so that no narrower window would do."""
    found = sizes(k, size, block)
    for seed in range(20):
        lists = lemma.all_open_on_one_rank(np.random.default_rng(seed), k, size, block)
        x = splitter_x(lists, block, found.settled)
        start = int((splitters(lists[0], block) >= x).sum()) * block
        best = winners(lists, k)
        wins = [int(key) in best for key in lists[0]]
        assert wins == [True] * (start + found.window) + [False] * (k - start - found.window)


@pytest.mark.parametrize(("k", "size", "block"), [shape for shape in SHAPES if shape[1] > 1])
def test_one_more_splitter_would_be_too_many(k: int, size: int, block: int) -> None:
    """Were t larger by one, a key that is not among the K largest would be settled."""
    more = sizes(k, size, block).settled + 1
    rng = np.random.default_rng(1)
    even = [more // size + (rank < more % size) for rank in range(size)]
    above = [min(k, a * block + (block - 1) * (rank > 0)) for rank, a in enumerate(even)]
    lists = tiers(rng, k, above, [k - each for each in above])
    x = splitter_x(lists, block, more)
    assert sum(int((splitters(each, block) >= x).sum()) for each in lists) == more
    assert not {int(key) for key in lists[0][: even[0] * block]} <= winners(lists, k)


@pytest.mark.parametrize(("k", "size", "block"), SHAPES)
def test_fewer_than_k_without_x(k: int, size: int, block: int) -> None:
    """If x is padding, the valid keys are fewer than K; and windows alone would lose some."""
    found = sizes(k, size, block)
    lists = lemma.most_without_x(np.random.default_rng(2), k, size, block)
    valid = [int((each > 0).sum()) for each in lists]
    assert sum(valid) < k
    if found.settled == 0:
        return
    assert splitter_x(lists, block, found.settled) == 0
    left_open = sum(count % block for count in valid)
    if sum(valid) == (found.settled - 1) * block + size * (block - 1):
        assert (left_open > found.window) == (size * (block - 1) > found.window)


def test_windows_alone_lose_winners_somewhere() -> None:
    """A shape where the override by padding is needed, so that tests of it mean something."""
    k, size, block = 12, 3, 4
    assert sizes(k, size, block) == lemma.Sizes(1, 8)
    lists = lemma.most_without_x(np.random.default_rng(0), k, size, block)
    assert [int((each > 0).sum()) for each in lists] == [3, 3, 3]


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 10), st.integers(1, 300))
def test_sizes_by_formula_and_by_trying(k: int, size: int, block: int) -> None:
    """The closed form, and its values where B divides K."""
    found, shape = sizes(k, size, block), splitter_shape(k, size, block)
    assert (shape.settled, shape.window) == (found.settled, found.window)
    assert shape.splitters == len(splitters(np.arange(k), block)) == -(-k // block)
    if k % block == 0 and block >= size and found.settled:
        assert (found.settled, found.window) == (k // block - size + 1, (size - 1) * block)
