"""What each row sees, by value: speculative rows, prefixes, padding, interleave, packed starts."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommMismatch
from dcp_comm.indexer import IndexerBatch, IndexerLimits
from dcp_comm.indexer.pages import read_keys
from dcp_comm.sharding import Shard
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import Workspace
from tests import oracle
from tests.indexer.cases import Case, a_step, call, check, serve, shard, with_scores

LIMITS = IndexerLimits(
    k=2, heads=1, head_dim=1, query_rows=16, requests=4, max_model_len=32, next_n=4, page_size=4
)


def a_batch(lengths: list[int], counts: list[int]) -> IndexerBatch:
    """Rows without tokens anywhere."""
    return IndexerBatch(lengths, counts, torch.zeros(len(lengths), 0, dtype=torch.int32))


@pytest.mark.parametrize(
    ("lengths", "counts", "rows"),
    [
        ([10], [3], [8, 9, 10]),
        ([8], [2], [7, 8]),
        ([2], [4], [0, 0, 1, 2]),
        ([5, -1, 0, 7], [1, 2, 2, 1], [5, 0, 0, 0, 0, 7]),
        ([5, 6, 7], [0, 2, 0], [5, 6]),
        ([], [], []),
    ],
    ids=["speculative", "prefix", "rows before token 0", "padding", "no rows", "nobody"],
)
def test_global_lengths(lengths: list[int], counts: list[int], rows: list[int]) -> None:
    """The last rows of each request, clamped at 0."""
    batch = a_batch(lengths, counts)
    assert batch.row_lengths.tolist() == rows
    assert batch.row_lengths.dtype == torch.int64
    spans = list(batch.spans(slice(0, batch.rows)))
    assert [span.longest for span in spans] == [
        max(0, n) for n, count in zip(lengths, counts, strict=True) if count
    ]


@pytest.mark.parametrize(
    ("rank", "size", "interleave", "length", "rows", "local"),
    [
        (1, 2, 1, 10, 3, [4, 4, 5]),
        (0, 2, 1, 10, 3, [4, 5, 5]),
        (0, 4, 2, 8, 8, [1, 2, 2, 2, 2, 2, 2, 2]),
        (1, 2, 1, 1, 2, [0, 0]),
        (0, 2, 1, 0, 2, [0, 0]),
    ],
)
def test_rows_are_expanded_before_they_are_localized(
    rank: int, size: int, interleave: int, length: int, rows: int, local: list[int]
) -> None:
    """Localized first, [8, 9, 10] on rank 1 of 2 would become [3, 4, 5]."""
    got = a_batch([length], [rows]).local_lengths(Shard(rank, size, interleave))
    assert got.tolist() == local


@pytest.mark.parametrize(
    ("interleave", "local"), [(1, [[2, 2, 2], [2, 2, 1]]), (3, [[3, 2, 1], [1, 2, 2]])]
)
def test_each_chunk_of_a_context_has_its_own_local_tokens(
    interleave: int, local: list[list[int]]
) -> None:
    """Context 11 in chunks of 4: the difference at a chunk's two bounds."""
    for rank in (0, 1):
        ends = [0]
        for length, rows in ((4, 4), (8, 4), (11, 3)):
            lengths = a_batch([length], [rows]).local_lengths(Shard(rank, 2, interleave))
            ends.append(int(lengths[-1]))
        assert np.diff(ends).tolist() == local[rank]


@pytest.mark.parametrize("interleave", [1, 3])
def test_a_prompt_in_chunks_selects_what_it_does_at_once(interleave: int) -> None:
    """Each chunk sees the whole prefix, and itself causally."""
    limits = replace(LIMITS, interleave=interleave, page_size=6)
    whole = a_step("prefill", [11], [11], heads=1, head_dim=1)
    parts = tuple(
        replace(
            whole,
            lengths=(end,),
            counts=(end - first,),
            q=whole.q[first:end],
            weights=whole.weights[first:end],
            keys=(whole.keys[0][:end],),
        )
        for first, end in ((0, 4), (4, 8), (8, 11))
    )
    case = Case(limits, 2, (whole, *parts))
    for rank, results in enumerate(run_ranks(serve, 2, case)):
        together = np.concatenate([ids for ids, _ in results[1:]])
        np.testing.assert_array_equal(together, results[0][0])
        np.testing.assert_array_equal(together, case.expected(whole, rank)[0])


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_ids_count_from_each_request_s_first_token(path: str) -> None:
    """Requests packed into columns 0, 2 and 5: a score's column is id + start."""
    step = with_scores(path, [[9, 8], [1, 2, 3], [3, 4, 5, 6]], [1, 1, 1])
    case = Case(LIMITS, 1, (step,))
    ids, counts = run_ranks(serve, 1, case)[0][0]
    assert ids.tolist() == [[0, 1], [2, 1], [3, 2]]
    assert counts.tolist() == [2, 2, 2]


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_padding_rows_among_real_ones_select_nothing(path: str) -> None:
    """Length 0, length -1, and rows before token 0; every rank, with the same exchanges."""
    step = a_step(path, [9, -1, 0, 2], [2, 3, 1, 4], heads=1, head_dim=1)
    case = Case(LIMITS, 3, (step,), output="global", chunk_rows=3)
    check(case)
    for results in run_ranks(serve, 3, case):
        ids, counts = results[0]
        assert ids[2:8].tolist() == [[-1, -1]] * 6
        assert counts[2:8].tolist() == [0] * 6
        assert counts[8:].tolist() == [1, 2]


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_ranks_without_tokens_take_part(path: str) -> None:
    """Three tokens over eight ranks."""
    check(Case(LIMITS, 8, (with_scores(path, [[5, 7, 6]], [1]),), output="global"))
    check(Case(LIMITS, 8, (with_scores(path, [[5, 7, 6]], [1]),), output="local"))


def test_rows_on_one_rank_only_are_a_mismatch_before_anything_is_exchanged() -> None:
    """A schedule from local rows would leave the others waiting."""
    step, none = (with_scores("prefill", [[5, 7, 6]], [rows]) for rows in (2, 0))

    def fn(comm: Communicator) -> bool:
        case = Case(LIMITS, 2, ())
        indexer, workspace = case.indexer(comm), Workspace()
        indexer.reserve(workspace)
        with pytest.raises(CommMismatch, match="rows=2"):
            call(indexer, case, comm, none if comm.rank else step, workspace)
        return "all_gather_into" in comm.ledger.by_op

    assert run_ranks(fn, 2) == [False, False]


def test_keys_written_by_their_owners_are_read_back_once_each() -> None:
    """Tokens 0..33 over four ranks in pairs: every one is found, on one rank, in its place."""
    limits = replace(LIMITS, interleave=2, max_model_len=34)
    step = with_scores("prefill", [list(range(34))], [1])
    found = []
    for rank in range(4):
        *_, cache, batch = shard(step, limits, 4, rank)
        hand = oracle.deal(34, 4, 2)[rank]
        keys = torch.empty(len(hand), 1)
        read_keys(keys, cache, batch.page_table[0])
        tokens = [int(key) for key in keys[:, 0]]
        place = Shard(rank, 4, 2)
        assert tokens == [place.global_index(j) for j in range(len(hand))]
        assert [place.local_index(token) for token in tokens] == list(range(len(hand)))
        found += tokens
    assert sorted(found) == list(range(34))


def test_a_step_of_no_requests_and_a_step_of_no_rows() -> None:
    """Nothing to score, nothing to send, a result of no rows."""
    nothing, idle = a_step("decode", [], []), a_step("prefill", [9, 3], [0, 0])
    check(Case(replace(LIMITS, heads=2, head_dim=3), 2, (nothing, idle, nothing)))


def test_short_contexts_exchange_nothing_for_a_rank_s_own_winners() -> None:
    """Every token wins where the agreed longest row is at most K."""
    steps = [with_scores("decode", [[1] * n, [3]], [1, 1]) for n in (2, 3)]

    def fn(comm: Communicator) -> list[bool]:
        case = Case(LIMITS, 2, tuple(steps))
        indexer, workspace, seen = case.indexer(comm), Workspace(), []
        indexer.prepare()
        for step in steps:
            comm.ledger.reset()
            call(indexer, case, comm, step, workspace)
            seen.append("all_gather_into" in comm.ledger.by_op)
        return seen

    assert run_ranks(fn, 2) == [[False, True]] * 2
