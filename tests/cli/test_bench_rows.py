"""The rows that are timed, and the answers that they are checked with, against numpy's."""

import numpy as np
import pytest
import torch

from dcp_comm.cli.bench import rows
from dcp_comm.cli.bench.rows import KINDS, Shape
from tests import oracle
from tests.cli.bench_cases import CPU, question


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_answer_is_the_oracles(kind: str) -> None:
    asked = question(kind)
    scores = asked.scores.numpy()
    wanted, _ = oracle.topk(scores, [scores.shape[1]] * len(scores), asked.k)
    np.testing.assert_array_equal(asked.winners.numpy(), wanted)
    ascending = rows.by_position(asked.winners).numpy()
    np.testing.assert_array_equal(ascending, oracle.by_position(wanted))
    for rank in range(asked.size):
        own, _ = oracle.own_winners(wanted, rank, asked.size, 1)
        np.testing.assert_array_equal(asked.own(rank).numpy(), own)
        ascending = rows.by_position(asked.own(rank)).numpy()
        np.testing.assert_array_equal(ascending, oracle.by_position(own))


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_part_holds_the_local_winners_in_another_order(kind: str) -> None:
    asked = question(kind, rows=40)
    for rank in range(asked.size):
        part = asked.part(rank)
        mine = asked.scores.numpy()[:, rank :: asked.size]
        np.testing.assert_array_equal(part.logits.numpy(), mine)
        assert part.lengths.tolist() == [mine.shape[1]] * 40
        best, _ = oracle.topk(mine, part.lengths.numpy(), asked.k)
        np.testing.assert_array_equal(np.sort(part.ids.numpy()), np.sort(best))
        assert (part.ids.numpy() != best).any()


def test_ranks_with_fewer_tokens_than_winners_have_padding() -> None:
    asked = question(length=20, size=3)
    for rank, tokens in enumerate((7, 7, 6)):
        assert ((asked.part(rank).ids >= 0).sum(1) == tokens).all()


def test_the_same_seed_gives_the_same_rows_and_another_shape_others() -> None:
    one, same, other = question(), question(), question(rows=6)
    assert torch.equal(one.scores, same.scores)
    assert not torch.equal(one.scores, other.scores[:5])


def test_a_plateau_ties_at_the_last_winner_and_skewed_rows_have_few_huge_scores() -> None:
    shape, k = Shape(50, 1000), 100
    plateau = rows.draw("plateau", shape, k, CPU)
    assert ((plateau > 0).sum(1) < k).all()
    assert ((plateau == 0).sum(1) > k).all()
    assert (plateau > 0).any(1).all()
    skewed = rows.draw("skewed", shape, k, CPU)
    huge = (skewed > 1e6).sum(1)
    assert ((huge >= 1) & (huge <= 4)).all()
    assert ((skewed > 0.9) & (skewed < 1.1)).sum() == skewed.numel() - huge.sum()


def test_rows_are_compared_by_their_scores_and_nothing_else_passes() -> None:
    scores = torch.tensor([[3.0, 1.0, 2.0, 0.0, 1.0, 1.0, 2.5]] * 6)
    wanted = torch.tensor([[0, 6, 2, 1, 4]] * 6, dtype=torch.int32)
    found = torch.tensor(
        [
            [0, 6, 2, 1, 4],
            [5, 0, 6, 2, 4],  # another of three equal ones, in another order
            [0, 6, 2, 1, 1],  # one of them twice
            [0, 6, 2, 1, 3],  # a smaller score
            [-1, 6, 2, 1, 4],
            [0, 7, 2, 1, 4],
        ],
        dtype=torch.int32,
    )
    each = zip(scores.split(1), found.split(1), wanted.split(1), strict=True)
    verdicts = [rows.other_scores(*row) for row in each]
    assert verdicts == [0, 0, 1, 1, 1, 1]
    assert rows.other_scores(scores, found, wanted) == 4


def test_blocks_cover_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = question(rows=7)
    monkeypatch.setattr(rows, "_BLOCK", 2 * 67)
    ends = [(each.start, each.stop) for each in rows.blocks(asked.scores)]
    assert ends == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert torch.equal(rows.winners(asked.scores, asked.k), asked.winners)
