"""Rows that went wrong in public, each by value, through local top-K and merge on every rank."""

import numpy as np
import pytest
import torch

from dcp_comm import sharding
from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge

NAN, INF = float("nan"), float("inf")


def merge_row(
    comm: Communicator, row: list[float], k: int, interleave: int, mask_neg_inf: bool
) -> list[int]:
    """Deal a row, take this rank's top-K, merge."""
    tokens = torch.arange(len(row))
    mine = sharding.owner(tokens, size=comm.size, interleave=interleave) == comm.rank
    logits = torch.tensor([row], dtype=torch.float32)[:, mine]
    scores, ids = local_topk(logits, k, mask_neg_inf=mask_neg_inf)
    merge = TopKMerge(comm, k, 1, interleave=interleave, mask_neg_inf=mask_neg_inf)
    return merge(scores, ids).ids[0].tolist()


def winners(
    row: list[float], k: int, size: int, interleave: int = 1, *, mask_neg_inf: bool = True
) -> list[int]:
    """The row that every rank returns."""
    rows = run_ranks(merge_row, size, row, k, interleave, mask_neg_inf)
    assert all(each == rows[0] for each in rows)
    return rows[0]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("row", "want"),
    [
        pytest.param([1.0] * 8, [0, 1], id="ties"),
        pytest.param([NAN, 3, NAN, NAN, 1, NAN, 2, NAN], [1, 6, 4, -1], id="nan"),
        pytest.param([NAN] * 5, [-1, -1, -1], id="all-nan"),
        pytest.param([INF, 1, INF, 0, -INF], [0, 2, 1, 3], id="inf"),
        pytest.param([5, 7, 6], [1, 2, 0, -1, -1, -1, -1, -1], id="fewer-than-k"),
        pytest.param([5, 7, 6], [1, 2, 0, -1], id="empty-ranks"),
        pytest.param([-0.0, 0.0], [0], id="negative-zero"),
        pytest.param([9, 0, 8, 0, 7, 0, 6, 0], [0, 2, 4, 6], id="one-rank-wins"),
        pytest.param([1.00, 0.90, 0.95, 0.85], [0, 2], id="union"),
        pytest.param([1.0], [0], id="single"),
        pytest.param([], [-1, -1], id="no-tokens"),
    ],
)
def test_small_rows(row: list[float], want: list[int], size: int) -> None:
    """The published answer, on any number of ranks."""
    assert winners(row, len(want), size) == want


def test_neg_inf_may_be_asked_for() -> None:
    """The fifth place goes to -inf only with mask_neg_inf=False."""
    row = [INF, 1, INF, 0, -INF]
    assert winners(row, 5, 2, mask_neg_inf=False) == [0, 2, 1, 3, 4]
    assert winners(row, 5, 2) == [0, 2, 1, 3, -1]


@pytest.mark.parametrize(("size", "interleave"), [(2, 1), (4, 16), (3, 64)])
def test_ties_beyond_any_bucket(size: int, interleave: int) -> None:
    """Equal scores by the thousand: the lowest ids, none missing."""
    assert winners([1.0] * 2048, 512, size, interleave) == list(range(512))
    row = [0.0] * 8320
    ones = [83 * i for i in range(100)]
    for token in ones:
        row[token] = 1.0
    zeros = [token for token in range(8320) if token not in set(ones)]
    got = winners(row, 2048, size, interleave)
    assert got == ones + zeros[:1948]
    assert max(got) == 8217


def test_scores_that_differ_in_the_last_bits() -> None:
    """One ulp apart, or equal in their upper bits."""
    close = (1 + np.arange(5000) * 2.0**-20).astype(np.float32).tolist()
    assert winners(close, 8, 4) == list(range(4999, 4991, -1))
    order = np.random.default_rng(0).permutation(300)
    ulps = (np.float32(1).view(np.int32) + order.astype(np.int32)).view(np.float32)
    assert winners(ulps.tolist(), 7, 3) == np.argsort(-order)[:7].tolist()
    low = np.random.default_rng(1).integers(0, 1024, 8192)
    row = (0x3F900000 + low).astype(np.int32).view(np.float32)
    want = np.argsort(-low, kind="stable")[:2048].tolist()
    assert winners(row.tolist(), 2048, 2) == want


@pytest.mark.parametrize("finite", [0, 1, 8, 15, 16])
def test_rows_with_few_finite_scores(finite: int) -> None:
    """What is masked never fills a slot; the winners stand in front."""
    row = [float(token) if token < finite else -INF for token in range(64)]
    assert winners(row, 16, 4) == list(range(finite - 1, -1, -1)) + [-1] * (16 - finite)


def test_twenty_runs_give_one_answer() -> None:
    """No order of arrival shows."""
    assert {tuple(winners([2.0] * 64, 8, 4)) for _ in range(20)} == {tuple(range(8))}


def test_scores_below_half_precision_range_are_scores() -> None:
    """-65504 is no sentinel."""
    assert winners([-7e4, -65504.0, -3e38, -65505.0], 3, 2) == [1, 3, 0]


def merge_far(comm: Communicator, positions: list[int]) -> list[int]:
    """Merge one candidate of equal score at each local position."""
    ids = torch.tensor([positions], dtype=torch.int32)
    merge = TopKMerge(comm, len(positions), 1)
    return merge(torch.ones(1, len(positions)), ids).ids[0].tolist()


def test_ids_that_float32_cannot_hold() -> None:
    """Position 8,388,608 of rank 1 of 2 is token 16,777,217, no other."""
    got = run_ranks(merge_far, 2, [8_388_608, 8_388_609])
    assert got == [[16_777_216, 16_777_217]] * 2


def test_ids_that_int32_cannot_hold_are_padding() -> None:
    """Global ids are int32: what lies beyond never becomes another token."""
    assert run_ranks(merge_far, 2, [2**30, 2**31 - 1, 5]) == [[10, 11, -1]] * 2


def test_row_relative_positions_of_packed_rows() -> None:
    """Logits of several requests in one matrix: a score's column is its id plus the row's start."""
    logits = torch.tensor([[9.0, 8, 1, 2, 3, 4, 5, 6]]).repeat(3, 1)
    starts, lengths = torch.tensor([0, 2, 4]), torch.tensor([2, 3, 4])
    _, ids = local_topk(logits, 2, starts, lengths)
    assert ids.tolist() == [[0, 1], [2, 1], [3, 2]]

    def fn(comm: Communicator) -> list[list[int]]:
        job = TopKMerge(comm, 2, 3).begin(3)
        job.pack_logits(logits, ids, starts, lengths)
        return job.finish().ids.tolist()

    assert run_ranks(fn, 1) == [[[0, 1], [2, 1], [3, 2]]]
