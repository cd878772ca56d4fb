"""Steps of an engine with whole-number scores, what must come out, and how the ranks run them.

The oracle scores the unsharded sequence densely in integers, so that no result depends on rounding,
and selects with `tests.oracle`; tokens are dealt one by one and written into pages drawn at random.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer
from dcp_comm.specs import BufferSpec
from dcp_comm.testing import run_ranks
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests import oracle
from tests.indexer import storages
from tests.oracle import Floats, Ints

SCALE = 0.5
POISONS = (0xFF, 0xA5, 0x7F, 0x00)
Inputs = tuple[Tensor, Tensor, Tensor, IndexerBatch]


@dataclass(frozen=True)
class Step:
    """One call, unsharded.

    Attributes:
        path: ``prefill`` or ``decode``.
        lengths: Global length of each request; below 1 for padding.
        counts: Query rows of each request.
        q, weights: Whole numbers, (T, H, D) and (T, H).
        keys: Whole numbers, a (length, D) for each request.
        seed: Where keys lie in the cache.
    """

    path: str
    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    q: Ints
    weights: Ints
    keys: tuple[Ints, ...]
    seed: int = 0

    @property
    def rows(self) -> int:
        """Query rows."""
        return sum(self.counts)

    @cached_property
    def scores(self) -> Floats:
        """Of every row and token of its request, (T, longest); NaN where there is none."""
        longest = max((len(each) for each in self.keys), default=0)
        scores = np.full((self.rows, longest), np.nan)
        for row, request in enumerate(self.owners):
            keys = self.keys[request]
            products = np.maximum(keys @ self.q[row].T, 0)
            scores[row, : len(keys)] = SCALE * (products @ self.weights[row])
        return scores.astype(np.float32)

    @property
    def owners(self) -> Ints:
        """Whose each row is."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def visible(self) -> Ints:
        """How many tokens each row sees: those not behind its own position."""
        seen = []
        for length, count in zip(self.lengths, self.counts, strict=True):
            positions = range(length - count, length)
            seen += [sum(token <= position for token in range(length)) for position in positions]
        return np.array(seen, dtype=np.int64)

    def winners(self, k: int) -> tuple[Ints, Ints]:
        """Global ids (T, K), best first, and counts."""
        return oracle.topk(self.scores, self.visible, k)


@dataclass(frozen=True)
class Case:
    """Steps that one indexer serves, one after another, in one locked workspace."""

    limits: IndexerLimits
    size: int
    steps: tuple[Step, ...]
    output: str = "local"
    order: str = "score"
    chunk_rows: int | None = None
    device: str = "cpu"
    storage: str = "float32"
    places: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def place(self, rank: int) -> int:
        """A rank's place in the deal; its own number unless told otherwise."""
        return self.places[rank] if self.places else rank

    def expected(self, step: Step, rank: int) -> tuple[Ints, Ints]:
        """A rank's ids (T, K) and counts."""
        ids, counts = step.winners(self.limits.k)
        if self.output != "global":
            place = self.place(rank)
            ids, counts = oracle.own_winners(ids, place, self.size, self.limits.interleave)
        ids = oracle.by_position(ids) if self.order == "position" else ids
        return (self.slots(step, rank, ids) if self.output == "slots" else ids), counts

    def slots(self, step: Step, rank: int, local: Ints) -> Ints:
        """Where local positions (T, K) lie in a rank's cache, by the table that it is given."""
        *_, batch = self.shard(step, rank)
        table, page = batch.page_table.numpy(), self.limits.page_size
        found = np.full_like(local, -1)
        for row, request in enumerate(step.owners):
            for n, j in enumerate(local[row]):
                found[row, n] = -1 if j < 0 else table[request, j // page] * page + j % page
        return found

    def shard(self, step: Step, rank: int) -> Inputs:
        """What a rank brings."""
        narrow = torch.int32 if self.output == "slots" else None
        return shard(step, self.limits, self.size, self.place(rank), self.storage, narrow)

    def indexer(self, comm: Communicator) -> SparseIndexer:
        """The case's indexer on one rank."""
        return SparseIndexer(
            comm,
            self.limits,
            output=self.output,
            scale=SCALE,
            order=self.order,
            chunk_rows=self.chunk_rows,
            shard_rank=self.place(comm.rank),
            **self.options,
        )


def a_step(
    path: str,
    lengths: Sequence[int],
    counts: Sequence[int],
    *,
    heads: int = 2,
    head_dim: int = 3,
    seed: int = 0,
) -> Step:
    """A step whose scores often tie."""
    rng = np.random.default_rng(seed)
    rows = sum(counts)
    keys = [rng.integers(-2, 3, (max(0, length), head_dim)) for length in lengths]
    return Step(
        path,
        tuple(lengths),
        tuple(counts),
        rng.integers(-2, 3, (rows, heads, head_dim)),
        rng.integers(-1, 3, (rows, heads)),
        tuple(keys),
        seed,
    )


def with_scores(path: str, scores: Sequence[Sequence[int]], counts: Sequence[int]) -> Step:
    """A step of one head and dimension: all of a request's rows see these scores of its tokens."""
    rows = sum(counts)
    keys = tuple(np.array(each, dtype=np.int64).reshape(-1, 1) for each in scores)
    ones = np.ones((rows, 1, 1), dtype=np.int64)
    return Step(path, tuple(map(len, scores)), tuple(counts), ones, ones[:, 0], keys)


def shard(
    step: Step,
    limits: IndexerLimits,
    size: int,
    rank: int,
    storage: str = "float32",
    dtype: torch.dtype | None = None,
) -> Inputs:
    """A rank's q, weights, cache and batch; what no token of a request fills is junk."""
    rng = np.random.default_rng([step.seed, rank])
    page = limits.page_size
    hands = [oracle.deal(len(keys), size, limits.interleave)[rank] for keys in step.keys]
    needs = [-(-len(hand) // page) for hand in hands]
    pages = rng.permutation(sum(needs) + int(rng.integers(1, 4)))
    cache = storages.empty(storage, rng, len(pages), page, limits.head_dim)
    width = max(needs, default=0) + int(rng.integers(0, 3))
    table = rng.choice([-1, -(2**31), 2**31 - 1, 0], (len(hands), width))
    for request, (hand, need) in enumerate(zip(hands, needs, strict=True)):
        table[request, :need], pages = pages[:need], pages[need:]
        for j, token in enumerate(hand):
            key = step.keys[request][token]
            storages.put(storage, cache, (table[request, j // page], j % page), key)
    dtype = dtype or (torch.int64 if step.seed % 2 else torch.int32)
    batch = IndexerBatch(step.lengths, step.counts, torch.from_numpy(table).to(dtype))
    q, weights = torch.from_numpy(step.q).float(), torch.from_numpy(step.weights).float()
    return q, weights, storages.tensor(storage, cache), batch


def call(
    indexer: SparseIndexer,
    case: Case,
    comm: Communicator,
    step: Step,
    workspace: Workspace,
    out: MergeResult | None = None,
) -> MergeResult:
    """Run a step on one rank, prefill or decode."""
    run: Callable[..., MergeResult] = getattr(indexer, step.path)
    *tensors, batch = case.shard(step, comm.rank)
    batch = replace(batch, page_table=batch.page_table.to(comm.device))
    inputs = (each.to(comm.device) for each in tensors)
    return run(*inputs, batch, workspace=workspace, out=out)


def serve(comm: Communicator, case: Case) -> list[tuple[Ints, Ints]]:
    """Reserve, lock, and run all steps in poisoned memory; results are read after the last."""
    indexer, workspace = case.indexer(comm), Workspace(comm.device, debug=True)
    indexer.reserve(workspace)
    workspace.lock()
    reserved, place = workspace.nbytes, address(workspace)
    results = []
    for n, step in enumerate(case.steps):
        poison(workspace, POISONS[n % len(POISONS)])
        results.append(call(indexer, case, comm, step, workspace))
        assert (workspace.nbytes, address(workspace)) == (reserved, place), "the workspace grew"
    poison(workspace, 0xA5)
    return [(each.ids.cpu().numpy(), each.counts.cpu().numpy()) for each in results]


def check(case: Case) -> None:
    """Compare every step on every rank with the oracle.

    Raises:
        AssertionError: A rank's row differs, or memory grew.
    """
    for rank, results in enumerate(run_ranks(serve, case.size, case, device=case.device)):
        compare(case, rank, results)


def compare(case: Case, rank: int, results: Sequence[tuple[Ints, Ints]]) -> None:
    """Compare a rank's results with the oracle's.

    Raises:
        AssertionError: They differ.
    """
    for step, (ids, counts) in zip(case.steps, results, strict=True):
        what = f"{step.path} of {step.lengths} x {step.counts} on rank {rank}"
        want, want_counts = case.expected(step, rank)
        np.testing.assert_array_equal(ids, want, what)
        np.testing.assert_array_equal(counts, want_counts, what)


def poison(workspace: Workspace, byte: int) -> None:
    """Fill all of slot 0."""
    workspace.take(BufferSpec("all", (workspace.nbytes,), torch.uint8))[0].fill_(byte)


def address(workspace: Workspace) -> int:
    """Where slot 0 begins."""
    return workspace.take(BufferSpec("first", (1,), torch.uint8))[0].data_ptr()
