"""The oracle itself, by value and against the slowest possible selection."""

import numpy as np
import pytest

from tests import oracle


def test_tokens_are_dealt_in_turn() -> None:
    """Two at a time over three ranks."""
    assert oracle.deal(11, 3, 2) == ((0, 1, 6, 7), (2, 3, 8, 9), (4, 5, 10))


@pytest.mark.parametrize("interleave", [1, 2, 5, 16])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_places_agree_with_the_deal(size: int, interleave: int) -> None:
    """Every token of a few rounds lies where it was dealt."""
    rank, position = oracle.place(np.arange(200), size, interleave)
    hands = oracle.deal(200, size, interleave)
    assert [hands[r][j] for r, j in zip(rank, position, strict=True)] == list(range(200))


def test_selection_by_hand() -> None:
    """NaN and -inf never win, zeros are equal, the smaller position wins a tie."""
    row = np.array([-0.0, np.nan, 2, 0.0, -np.inf, 2, np.inf, -1], dtype=np.float32)
    ids, counts = oracle.topk(np.stack([row, row]), [8, 3], 7)
    assert ids.tolist() == [[6, 2, 5, 0, 3, 7, -1], [2, 0, -1, -1, -1, -1, -1]]
    assert counts.tolist() == [6, 2]
    ids, _ = oracle.topk(row[None], [8], 8, mask_neg_inf=False)
    assert ids.tolist() == [[6, 2, 5, 0, 3, 7, 4, -1]]


def test_own_winners_by_hand() -> None:
    """Rank 1 of 2 owns the odd tokens; order is kept, or ascending with `by_position`."""
    ids = np.array([[7, 2, 1, -1], [0, 2, -1, -1]])
    local, counts = oracle.own_winners(ids, 1, 2, 1)
    assert local.tolist() == [[3, 0, -1, -1], [-1, -1, -1, -1]]
    assert counts.tolist() == [2, 0]
    assert oracle.by_position(local).tolist() == [[0, 3, -1, -1], [-1, -1, -1, -1]]


def test_candidates_far_apart() -> None:
    """Order of arrival does not matter."""
    scores = np.array([1, 3, 3], dtype=np.float32)
    best = oracle.topk_of_candidates(scores, np.array([5, 2**30, 9]), 4)
    assert best.tolist() == [9, 2**30, 5, -1]
