"""Certificates of every strategy: never wrong whatever the tie rule, and how often they hold."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from tests.topk.cases import Case, check_merge, columns_of, feed
from tests.topk.scores import KINDS, drawn, drawn_lengths
from tests.topk.variants import check_variants, merges_on_a_rank, variants


def a_case(kind: str, seed: int, **changes: Any) -> Case:
    """Forty rows over three ranks, lists from a third of them."""
    rng = np.random.default_rng(seed)
    scores, lengths = drawn(kind, 40, 72, rng), drawn_lengths(40, 72, 12, rng)
    return replace(Case(scores, lengths, 3, 12, 2, chunk_rows=16, seed=seed), **changes)


@pytest.mark.parametrize("output", ["global", "local"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_certified_rows_are_exact_whatever_tie_rule_the_lists_used(kind: str, output: str) -> None:
    """By every strategy; on certified rows alone, since others may differ from the oracle."""
    for seed, tie in enumerate(("high", "random", "high", "random")):
        assert check_variants(a_case(kind, seed, tie=tie, output=output)) > 0


@pytest.mark.parametrize(("output", "strategies"), [("global", 3), ("local", 8)])
def test_some_uncertified_rows_are_wrong(output: str, strategies: int) -> None:
    """So the certificate says something: equal scores, lists that keep the larger positions."""
    case = a_case("equal", 1, tie="high", output=output)
    chosen = list(variants(output, case.k))
    assert len(chosen) == strategies
    outcomes = run_ranks(merges_on_a_rank, 3, case, chosen)
    for rank, each in enumerate(outcomes):
        ids, _ = case.expected(rank)
        for got in each:
            wrong = (got.ids != ids).any(1)
            assert wrong.any()
            assert not (wrong & got.certified).any()


@pytest.mark.parametrize("output", ["global", "local"])
def test_how_often_it_holds(output: str) -> None:
    """Always where scores are all different; a plateau that reaches the threshold is the rest."""
    rng = np.random.default_rng(3)
    rows, length, k = 50, 400, 16
    lengths = np.full(rows, length)
    different = np.stack([rng.permutation(length) for _ in range(rows)]).astype(np.float32)
    case = Case(different, lengths, 4, k, tie="random", output=output)
    plateau = np.maximum(different - 390, 0).astype(np.float32)
    for scores, certain in ((different, 1.0), (plateau, 0.0)):
        for got in check_merge(replace(case, scores=scores, strategy="owner")):
            assert got.certified.mean() == certain
        assert check_variants(replace(case, scores=scores)) > 0


@pytest.mark.parametrize("transport", ["all", "owner"])
def test_a_tie_with_the_last_settled_key(transport: str) -> None:
    """The K-th winner may be x itself, below what the windows still give: a tie with it counts.

    p = 2, B = 2, K = 3: t = 1 and W = 1. Rank 1 has 8 and x = 7, and 9 is open on rank 0.
    """
    scores = np.array([[9, 8, 5, 7, 6, 4, 6, 3]], dtype=np.float32)
    options = MergeOptions(transport, 2)
    case = Case(scores, np.array([8]), 2, 3, output="local", strategy="splitter", options=options)
    assert [got.certified.tolist() for got in check_merge(case)] == [[True]] * 2
    tied = replace(case, scores=np.where(scores == 6, np.float32(7), scores))
    assert [got.certified.tolist() for got in check_merge(tied)] == [[False]] * 2


@pytest.mark.parametrize("strategy", ["gather", "owner", "splitter"])
def test_uncertified_rows_are_counted(strategy: str) -> None:
    """Added up over merges, on the device; rows that need no exchange are certain."""
    case = a_case("equal", 0, tie="high", output="local")
    expected = int((~case.expected_certified).sum())
    assert 0 < expected < case.rows

    def fn(comm: Communicator) -> list[int]:
        merge = TopKMerge(
            comm, case.k, case.rows, 2, strategy=strategy, output="local", chunk_rows=16
        )
        seen, columns = [int(merge.uncertified)], columns_of(case, comm)
        for longest in (None, case.k, None):
            job = merge.begin(case.rows, longest=longest)
            feed(job, case, columns)
            job.finish()
            seen.append(int(merge.uncertified))
        assert merge.uncertified.dtype == torch.int64
        assert merge.uncertified.device == comm.device
        return seen

    assert run_ranks(fn, 3) == [[0, expected, expected, 2 * expected]] * 3


def test_the_counter_counts_inside_and_outside_inference_mode() -> None:
    """An engine may build its merge in either."""

    def fn(comm: Communicator) -> int:
        with torch.inference_mode():
            merge = TopKMerge(comm, 2, 4)
        scores, ids = torch.ones(4, 2), torch.tensor([[0, 1]], dtype=torch.int32).repeat(4, 1)
        merge(scores, ids)
        with torch.inference_mode():
            merge(scores, ids)
        return int(merge.uncertified)

    assert run_ranks(fn, 2) == [8, 8]
