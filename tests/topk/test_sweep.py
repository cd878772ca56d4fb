"""The merge against the oracle over every dimension, at once and in segments."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.topk.cases import Case, check_merge, select_lists
from tests.topk.scores import KINDS, drawn, drawn_lengths

SIZES = (1, 2, 3, 4, 5, 6, 8)
KS = (1, 37, 64, 512, 1000, 2048, 2051)
INTERLEAVES = (1, 2, 4, 16, 64)
SEGMENTS = ((), (1, 3, 2))
TARGETS = (("global", "score"), ("local", "score"), ("global", "position"), ("local", "position"))
DTYPES = (None, torch.float32, torch.bfloat16, torch.float16)
POISONS = (0xFF, 0xA5, 0x7F, 0x00)


def chunk_rows(k: int) -> int:
    """Small chunks for large K, so that a sweep fits a test run."""
    return 192 if k <= 64 else 8 if k <= 1000 else 4


def row_counts(k: int) -> tuple[int, ...]:
    """T around the chunk's size R."""
    r = chunk_rows(k)
    return (0, 1, r - 1, r, r + 1, 2 * r + 5)


def build(
    size: int,
    k: int,
    interleave: int,
    rows: int,
    cuts: tuple[int, ...],
    n: int,
    device: str = "cpu",
) -> Case:
    """The n-th case: what the grid does not fix is drawn, the same on every run."""
    rng = np.random.default_rng(n)
    output, order = TARGETS[rng.integers(4)]
    length = int(rng.choice([size * k + k // 3 + 1, 2 * k + size * interleave, k + 3, 3]))
    lengths = drawn_lengths(rows, length, k, rng)
    scores, dtype = drawn(str(rng.choice(list(KINDS))), rows, length, rng), DTYPES[rng.integers(4)]
    if dtype is not None:
        scores = torch.from_numpy(scores).to(dtype).float().numpy()
    rounds = int(rng.choice([0, 2**24, 2**31 - 2 * length - 99])) // (size * interleave)
    longest = rounds * size * interleave + int(lengths.max(initial=0))
    return Case(
        scores,
        lengths,
        size,
        k,
        interleave,
        output=output,
        order=order,
        mask_neg_inf=bool(rng.integers(2)),
        chunk_rows=chunk_rows(k),
        segments=tuple(cut * max(1, chunk_rows(k) // 5) for cut in cuts),
        logits=dtype,
        poison=POISONS[rng.integers(4)],
        longest=longest if rng.random() < 0.5 else None,
        rounds=rounds,
        device=device,
        seed=n,
    )


def grid(full: bool) -> Iterator[tuple[int, int, int, int, tuple[int, ...]]]:
    """Every point, or every (size, K, T) with interleave and segments in turn."""
    deals = list(itertools.product(INTERLEAVES, SEGMENTS))
    turn = itertools.cycle(deals)
    for size, k in itertools.product(SIZES, KS):
        for rows in row_counts(k):
            for interleave, cuts in deals if full else [next(turn)]:
                yield size, k, interleave, rows, cuts


QUICK, FULL = list(grid(full=False)), list(grid(full=True))


def test_the_sweep_covers_at_least_twenty_thousand_rows() -> None:
    """Counted, and every value of every dimension is met in the quick part too."""
    assert sum(rows for _, _, _, rows, _ in QUICK) >= 20_000
    assert {(size, k) for size, k, *_ in QUICK} == set(itertools.product(SIZES, KS))
    assert {(each[2], each[4]) for each in QUICK} == set(itertools.product(INTERLEAVES, SEGMENTS))
    assert set(QUICK) < set(FULL)


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("size", SIZES)
def test_merge_equals_the_oracle(size: int, k: int) -> None:
    """Ids, order, counts and certificates, on every rank."""
    for n, point in enumerate(QUICK):
        if point[:2] == (size, k):
            check_merge(build(*point, n))


@pytest.mark.parametrize("strategy", ["gather", "owner"])
@pytest.mark.parametrize("k", [1, 37, 512])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_winners_of_unsorted_lists_equal_the_oracle(
    size: int, k: int, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    select_lists(monkeypatch)
    rows = 2 * chunk_rows(k) + 5
    for n, cuts in enumerate(SEGMENTS * 2):
        case = build(size, k, 4, rows, cuts, 100 * size + k + n)
        check_merge(replace(case, strategy=strategy))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("size", SIZES)
def test_merge_equals_the_oracle_everywhere(size: int, k: int) -> None:
    """The full grid."""
    for n, point in enumerate(FULL):
        if point[:2] == (size, k):
            check_merge(build(*point, n))
