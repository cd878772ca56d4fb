"""The tests bite: each known mistake, put into the indexer, fails the check of all of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import DcpCommError
from dcp_comm.indexer import IndexerBatch, IndexerLimits, pages, path, prefill, sparse
from dcp_comm.indexer.path import Path, Setup, Step
from dcp_comm.sharding import Shard
from dcp_comm.testing import run_ranks
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.indexer.cases import Case, a_step, call, check

Patch = pytest.MonkeyPatch

LIMITS = IndexerLimits(
    4, 2, 3, 16, 3, 80, next_n=3, interleave=2, page_size=4, logits_bytes=4 * 5 * 26 + 4 * 23
)
CASE = Case(
    LIMITS,
    3,
    (
        a_step("decode", [79, 9, 31], [3, 3, 3], seed=1),
        a_step("prefill", [13, 30, 9], [5, 4, 3], seed=2),
        a_step("prefill", [79, -1, 2], [9, 2, 3], seed=3),
    ),
    chunk_rows=6,
)


def row_starts_dropped(patch: Patch) -> None:
    """Read every row from column 0."""
    patch.setattr(
        path, "local_topk", lambda logits, k, _, *rest: local_topk(logits, k, None, *rest)
    )


def localized_before_expanded(patch: Patch) -> None:
    """Take the request's local length, then count back in local tokens."""

    def wrong(self: IndexerBatch, shard: Shard) -> Tensor:
        local = [max(0, shard.local_length(length)) for length in self.lengths]
        return replace(self, lengths=local).row_lengths

    patch.setattr(IndexerBatch, "local_lengths", wrong)


def two_takes(patch: Patch) -> None:
    """Take the merge's scratch after what must stay alive under it."""
    right = Workspace.take

    def wrong(self: Workspace, *specs: Any) -> tuple[Tensor, ...]:
        if specs[0].name != "keys":
            return right(self, *specs)
        return right(self, *specs[:4]) + right(self, *specs[4:])

    patch.setattr(Workspace, "take", wrong)


def merges_by_local_lengths(patch: Patch) -> None:
    """Merge once a logits chunk, cut as this rank's own tokens allow."""

    def wrong(self: Path, step: Step, views: tuple[Tensor, ...], out: MergeResult) -> MergeResult:
        keys, logits, scores, ids, *scratch = views
        lengths, parts = step.batch.local_lengths(self.setup.shard), []
        for chunk in self.scored(step, keys, logits):
            count = len(chunk.logits)
            self._select(chunk, lengths[chunk.rows], scores[:count], ids[:count])
            parts.append(self.merge(scores[:count], ids[:count], scratch=scratch))
        every = [[each.ids, each.counts, each.certified] for each in parts]
        return MergeResult(*map(torch.cat, zip(*every, strict=True)))

    patch.setattr(Path, "run", wrong)
    patch.setattr(Setup, "most", lambda self, length: self.shard.local_length(length))


def all_rows_see_the_whole_request(patch: Patch) -> None:
    """Forget causality."""

    def wrong(self: IndexerBatch, shard: Shard) -> Tensor:
        return shard.local_length(torch.tensor(self.contexts)[self.row_requests])

    patch.setattr(IndexerBatch, "local_lengths", wrong)


def interleave_ignored(patch: Patch) -> None:
    """Localize lengths token by token."""
    patch.setattr(sparse, "Shard", lambda rank, size, interleave: Shard(rank, size, 1))


def page_table_ignored(patch: Patch) -> None:
    """Read tokens where they would lie without one."""

    def wrong(table: Tensor, first: int, count: int, page_size: int) -> Tensor:
        return torch.arange(first, first + count)

    patch.setattr(pages, "slots", wrong)


def tiles_from_the_start(patch: Patch) -> None:
    """Read every block of a request as if it were the first."""
    right = pages.slots
    patch.setattr(pages, "slots", lambda table, first, *rest: right(table, 0, *rest))
    patch.setattr(pages, "BLOCK_TOKENS", 3)


def first_request_s_pages(patch: Patch) -> None:
    """Gather everybody's keys through the first row of the page table."""

    def wrong(keys: Tensor, cache: Tensor, table: Tensor) -> None:
        pages.read_keys(keys, cache, table.new_zeros(len(table)))

    patch.setattr(prefill, "read_keys", wrong)


def last_chunk_skipped(patch: Patch) -> None:
    """Leave the last rows' logits out."""
    patch.setattr(prefill, "blocks", lambda *args: list(path.blocks(*args))[:-1])


def longest_of_one_rank(patch: Patch) -> None:
    """Tell the merge a local length where it needs the global one."""
    right = TopKMerge.begin

    def wrong(self: TopKMerge, rows: int, longest: int, **options: Any) -> Any:
        return right(self, rows, longest=longest // 3 // 9, **options)

    patch.setattr(TopKMerge, "begin", wrong)


MUTATIONS: list[Callable[[Patch], None]] = [
    row_starts_dropped,
    localized_before_expanded,
    two_takes,
    merges_by_local_lengths,
    all_rows_see_the_whole_request,
    interleave_ignored,
    page_table_ignored,
    tiles_from_the_start,
    first_request_s_pages,
    last_chunk_skipped,
    longest_of_one_rank,
]


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_the_mistake_is_caught(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """The case passes as things are, and fails with the mistake."""
    check(CASE)
    with monkeypatch.context() as patch:
        mutate(patch)
        with pytest.raises((AssertionError, DcpCommError)):
            check(CASE)


def test_one_merge_a_step_whatever_the_logits_chunks() -> None:
    """Exchanges follow from the rows: 9, 12 and 14 of them, 6 at a time."""

    def fn(comm: Communicator) -> list[int]:
        indexer, workspace, exchanges = CASE.indexer(comm), Workspace(), []
        indexer.prepare()
        for step in CASE.steps:
            comm.ledger.reset()
            call(indexer, CASE, comm, step, workspace)
            exchanges.append(comm.ledger.by_op["all_gather_into"].calls)
        return exchanges

    assert run_ranks(fn, 3) == [[2, 2, 3]] * 3
