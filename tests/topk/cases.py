"""Merge cases, how the ranks run them, and the one check that every merge test uses."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.specs import BufferSpec
from dcp_comm.testing import run_ranks
from dcp_comm.topk.job import MergeJob
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.result import MergeResult
from dcp_comm.topk.strategy import Problem
from tests import oracle
from tests.oracle import Floats, Ints

T = TypeVar("T")

HUGE = 3e38
GUARD = 3
PAGE = 4
PAGED = MergeOptions(page_size=PAGE)


@dataclass(frozen=True)
class Case:
    """Full scores of every token, and how they are dealt, listed and merged.

    ``tie`` is the local lists' rule: the contract's ``low`` position first, ``high``, ``random``.
    ``segments`` are the sizes of successive packs, repeated; empty for all at once.
    ``logits`` packs from a wide matrix with row starts instead of from scores. ``rounds`` full
    deals of masked tokens come before token 0, so that every id is large; not with output "slots".
    """

    scores: Floats
    lengths: Ints
    size: int
    k: int
    interleave: int = 1
    output: str = "global"
    order: str = "score"
    mask_neg_inf: bool = True
    chunk_rows: int | None = None
    segments: tuple[int, ...] = ()
    logits: torch.dtype | None = None
    tie: str = "low"
    poison: int = 0xA5
    longest: int | None = None
    rounds: int = 0
    strategy: str = "auto"
    options: MergeOptions = PAGED
    device: str = "cpu"
    seed: int = 0

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.lengths)

    @property
    def base(self) -> int:
        """Local positions before a rank's first token."""
        return self.rounds * self.interleave

    @cached_property
    def winners(self) -> Ints:
        """What an unsharded top-K selects."""
        ids, _ = oracle.topk(self.scores, self.lengths, self.k, mask_neg_inf=self.mask_neg_inf)
        return ids

    def hand(self, rank: int) -> Ints:
        """The rank's tokens."""
        return np.array(
            oracle.deal(self.scores.shape[1], self.size, self.interleave)[rank], dtype=np.int64
        )

    def local_lengths(self, rank: int) -> Ints:
        """How many of a rank's tokens each row may see."""
        counts: Ints = (self.hand(rank)[None, :] < self.lengths[:, None]).sum(1)
        return counts

    def local_list(self, rank: int) -> tuple[Floats, Ints]:
        """The rank's top-K (T, K) by the case's tie rule: scores and positions, -1 for none."""
        hand, rng = self.hand(rank), np.random.default_rng(self.seed)
        tried = np.arange(len(hand))
        if self.tie == "high":
            tried = tried[::-1]
        elif self.tie == "random":
            tried = rng.permutation(tried)
        wide = self.scores[:, hand[tried]].astype(np.float64)
        wide[tried[None, :] >= self.local_lengths(rank)[:, None]] = np.nan
        if self.mask_neg_inf:
            wide[wide == -np.inf] = np.nan
        best = np.argsort(-wide, axis=1, kind="stable")[:, : self.k]
        kept = np.take_along_axis(wide, best, axis=1)
        scores = np.full((self.rows, self.k), np.nan)
        ids = np.full((self.rows, self.k), -1, dtype=np.int64)
        scores[:, : best.shape[1]] = kept
        ids[:, : best.shape[1]] = np.where(np.isnan(kept), -1, tried[best] + self.base)
        return scores.astype(np.float32), ids

    def expected(self, rank: int) -> tuple[Ints, Ints]:
        """The rank's ids (T, K) and counts."""
        ids = np.where(self.winners < 0, -1, self.winners + self.base * self.size)
        counts = (ids >= 0).sum(1)
        if self.output != "global":
            ids, counts = oracle.own_winners(ids, rank, self.size, self.interleave)
        if self.order == "position":
            ids = oracle.by_position(ids)
        if self.output == "slots":
            pages, requests = self.block_table(rank)
            slots = pages[requests[:, None], ids // PAGE] * PAGE + ids % PAGE
            ids = np.where(ids < 0, -1, slots)
        return ids, counts

    def block_table(self, rank: int) -> tuple[Ints, Ints]:
        """The rank's pages (R, pages), in any order, and each row's request."""
        rng = np.random.default_rng(self.seed + rank)
        requests, pages = self.rows // 2 + 1, len(self.hand(rank)) // PAGE + 1
        table = rng.permutation(requests * pages).reshape(requests, pages)
        return table, rng.integers(0, requests, self.rows)

    @cached_property
    def expected_certified(self) -> npt.NDArray[np.bool_]:
        """Rows where no list can have been cut at the last winner's score."""
        if self.output != "global" and self.longest is not None and self.longest <= self.k:
            return np.ones(self.rows, dtype=np.bool_)
        lists = [self.local_list(rank)[0] for rank in range(self.size)]
        every = np.concatenate(lists, axis=1)
        threshold = -np.sort(-every, axis=1)[:, self.k - 1]  # NaN, which is no score, sorts last
        certified: npt.NDArray[np.bool_] = np.all(
            [np.isnan(each[:, -1]) | (each[:, -1] < threshold) for each in lists], axis=0
        )
        return certified


@dataclass(frozen=True)
class Outcome:
    """What one rank got."""

    ids: Ints
    counts: Ints
    certified: npt.NDArray[np.bool_]


def check_merge(case: Case) -> list[Outcome]:
    """Run the case on every rank and compare with the oracle, certificates included.

    Raises:
        AssertionError: A rank's row differs, or what lies beside the result was written.
    """
    outcomes = run_ranks(merge_on_a_rank, case.size, case, device=case.device)
    check_outcomes(case, outcomes)
    return outcomes


def check_outcomes(case: Case, outcomes: Sequence[Outcome]) -> None:
    """Compare what the ranks got with the oracle; without a certificate only if lists keep ties.

    Raises:
        AssertionError: A rank's row differs.
    """
    for rank, got in enumerate(outcomes):
        ids, counts = case.expected(rank)
        rows = np.arange(case.rows) if case.tie == "low" else np.flatnonzero(got.certified)
        np.testing.assert_array_equal(got.ids[rows], ids[rows], f"ids of rank {rank}")
        np.testing.assert_array_equal(got.counts[rows], counts[rows], f"counts of rank {rank}")
        np.testing.assert_array_equal(got.certified, case.expected_certified, f"rank {rank}")


def merge_on_a_rank(comm: Communicator, case: Case) -> Outcome:
    """Merge the rank's lists, with stale candidates in every spare slot."""
    return merge_columns(comm, case, columns_of(case, comm))


def merge_columns(comm: Communicator, case: Case, columns: list[torch.Tensor]) -> Outcome:
    """Merge in poisoned memory."""
    merge = TopKMerge(
        comm,
        case.k,
        max(1, case.rows),
        interleave=case.interleave,
        strategy=case.strategy,
        output=case.output,
        order=case.order,
        mask_neg_inf=case.mask_neg_inf,
        chunk_rows=case.chunk_rows,
        options=case.options,
    )
    scratch = [poisoned(spec, case.poison).to(comm.device) for spec in merge.specs()]
    wide = poisoned(BufferSpec("ids", (case.rows, case.k + GUARD), torch.int32), case.poison)
    wide = wide.to(comm.device)
    before = wide.clone()
    counts = torch.full_like(wide[:, 0], 77)
    certified = torch.ones_like(counts, dtype=torch.bool)
    out = MergeResult(wide[:, : case.k], counts, certified)
    tables: dict[str, Any] = {}
    if case.output == "slots":
        pages, requests = (torch.from_numpy(each) for each in case.block_table(comm.rank))
        tables["block_table"] = strided(pages.int().to(comm.device))
        tables["request_ids"] = requests.to(comm.device)
    job = merge.begin(case.rows, scratch=scratch, out=out, longest=case.longest, **tables)
    feed(job, case, columns)
    result = job.finish()
    assert torch.equal(wide[:, case.k :], before[:, case.k :]), "written beyond a row"
    return Outcome(*(each.cpu().numpy() for each in (result.ids, result.counts, result.certified)))


def columns_of(case: Case, comm: Communicator) -> list[torch.Tensor]:
    """What a rank packs: ids, lengths, and scores or logits with row starts; with gaps."""
    rank = comm.rank
    scores, ids = stale(case, rank, *case.local_list(rank))
    columns = [
        torch.from_numpy(ids.astype(np.int32)),
        torch.from_numpy(case.local_lengths(rank) + case.base),
    ]
    if case.logits is None:
        columns.append(torch.from_numpy(scores))
    else:
        columns += logits_of(case, rank, case.logits)
    return [strided(each.to(comm.device)) for each in columns]


def feed(job: MergeJob, case: Case, columns: list[torch.Tensor]) -> None:
    """Pack all rows, in the case's segments."""
    for rows in segments(case.rows, case.segments):
        ids, lengths, values, *starts = (each[rows] for each in columns)
        if case.logits is None:
            job.pack(values, ids, lengths)
        else:
            job.pack_logits(values, ids, starts[0], lengths)


def stale(case: Case, rank: int, scores: Floats, ids: Ints) -> tuple[Floats, Ints]:
    """Fill every spare slot with what must not win, then shuffle each row."""
    rng = np.random.default_rng(case.seed + rank)
    spare, lengths = ids < 0, case.local_lengths(rank)
    beyond = lengths[:, None] + rng.integers(0, 9, ids.shape)
    junk = np.where(rng.random(ids.shape) < 0.5, rng.integers(-9, 0, ids.shape), beyond + case.base)
    scores = np.where(spare, np.float32(HUGE), scores)
    for row, local in enumerate(case.scores[:, case.hand(rank)]):
        masked = np.isnan(local) | ((local == -np.inf) & case.mask_neg_inf)
        tokens = np.flatnonzero(masked[: lengths[row]])
        slots = np.flatnonzero(spare[row])[: len(tokens)]
        junk[row, slots] = tokens[: len(slots)] + case.base
        scores[row, slots] = local[tokens[: len(slots)]]
    shuffled = rng.permuted(np.tile(np.arange(case.k), (case.rows, 1)), axis=1)
    return (
        np.take_along_axis(scores, shuffled, axis=1),
        np.take_along_axis(np.where(spare, junk, ids), shuffled, axis=1),
    )


def logits_of(case: Case, rank: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """A packed matrix in which each row's tokens begin at a column of its own, and the starts."""
    rng = np.random.default_rng(case.seed + rank)
    local = case.scores[:, case.hand(rank)]
    width = local.shape[1]
    starts = rng.integers(0, 5, case.rows)
    logits = np.full((case.rows, width + 4), np.float32(6e4))
    for row, start in enumerate(starts):
        logits[row, start : start + width] = local[row]
    return [torch.from_numpy(logits).to(dtype), torch.from_numpy(starts - case.base)]


def segments(rows: int, sizes: Sequence[int]) -> Iterator[slice]:
    """Slices of the given sizes, repeated until all rows are covered; one slice without sizes."""
    first, turn = 0, 0
    while first < rows:
        size = sizes[turn % len(sizes)] if sizes else rows
        yield slice(first, first + size)
        first, turn = first + size, turn + 1


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with a gap behind each row."""
    if tensor.dim() < 2:
        return torch.stack([tensor, tensor], 1)[:, 0]
    return torch.cat([tensor, tensor], 1)[:, : tensor.shape[1]]


def poisoned(spec: BufferSpec, byte: int) -> torch.Tensor:
    """A buffer whose every byte is ``byte``."""
    return torch.full((spec.nbytes,), byte, dtype=torch.uint8).view(spec.dtype).view(spec.shape)


def rows_of(rows: int, k: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and ids of rows where every candidate is valid."""
    return torch.rand(rows, k), torch.arange(k, dtype=torch.int32).repeat(rows, 1)


def alone(fn: Callable[[Communicator], T]) -> T:
    """Run on a group of one."""
    return run_ranks(fn, 1)[0]


def select_lists(patch: pytest.MonkeyPatch) -> None:
    """Have merges select from unsorted lists, as they do on CUDA."""
    patch.setattr(Problem, "selects_lists", True)
