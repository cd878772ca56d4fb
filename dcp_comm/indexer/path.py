"""What prefill and decode share: one take, logits chunk by chunk, local top-K, one merge."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from dcp_comm.indexer.batch import IndexerBatch
from dcp_comm.indexer.limits import IndexerLimits
from dcp_comm.indexer.scoring import Score
from dcp_comm.sharding import Shard, local_length
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult

CHUNK_ROWS = 1024
"""Most rows of logits, and of local top-K lists, that are alive at once."""


@dataclass(frozen=True)
class Setup:
    """What an indexer was built with.

    Attributes:
        limits: The most that a call may bring.
        shard: This rank's place in the KV interleave.
        score: What fills logits.
        scale: Factor of every score.
        mask_neg_inf: Whether a score of -inf never wins.
        slots: Whether results are slots, by the batch's page table.
    """

    limits: IndexerLimits
    shard: Shard
    score: Score
    scale: float
    mask_neg_inf: bool
    slots: bool

    def most(self, length: int) -> int:
        """Return the most of ``length`` tokens that any rank owns: agreed, unlike one's own."""
        return local_length(length, rank=0, size=self.shard.size, interleave=self.shard.interleave)


class Step(NamedTuple):
    """The tensors of one call, and whose they are; see the package's table."""

    q: Tensor
    weights: Tensor
    cache: Tensor
    batch: IndexerBatch

    def detached(self) -> "Step":
        """Return the same outside autograd."""
        return Step(self.q.detach(), self.weights.detach(), self.cache.detach(), self.batch)


class Chunk(NamedTuple):
    """Some rows' logits.

    Attributes:
        rows: Which rows of the batch.
        logits: float32 (n, any); a row's own tokens are valid, the rest is anything.
        starts: int64 (n,), column of each row's first token; None for 0.
    """

    rows: slice
    logits: Tensor
    starts: Tensor | None


class Path(ABC):
    """One way through the indexer, with its own merge and its own reservation.

    Args:
        setup: What the indexer was built with.
        merge: Merges up to ``max_rows`` rows.
        max_rows: Most rows of a call.

    Attributes:
        owner: Whose reservation it is, for the workspace.
        cache: What its calls name their cache, for errors.
    """

    owner: ClassVar[str]
    cache: ClassVar[str]

    def __init__(self, setup: Setup, merge: TopKMerge, max_rows: int) -> None:
        self.setup, self.merge, self._max_rows = setup, merge, max_rows
        self._rows, self._elements = extent(setup.limits, setup.shard.size, max_rows)

    @staticmethod
    @abstractmethod
    def key_tokens(limits: IndexerLimits, size: int) -> int:
        """Return the tokens whose keys are alive at once, the same on every rank."""

    @classmethod
    def buffers(cls, limits: IndexerLimits, size: int, max_rows: int) -> tuple[BufferSpec, ...]:
        """Return what is alive together in the worst call, beside the scratch of the merge."""
        rows, elements = extent(limits, size, max_rows)
        keys = cls.key_tokens(limits, size), limits.head_dim
        return (
            BufferSpec("keys", keys, torch.float32),
            BufferSpec("logits", (elements,), torch.float32),
            BufferSpec("scores", (rows, limits.k), torch.float32),
            BufferSpec("ids", (rows, limits.k), torch.int32),
        )

    @abstractmethod
    def scored(self, step: Step, keys: Tensor, logits: Tensor) -> Iterator[Chunk]:
        """Yield every row of the batch once, in order; each chunk is used before the next.

        Args:
            step: The call's inputs.
            keys: float32 (key_tokens, D), scratch.
            logits: float32 (any,), scratch for the chunks.
        """

    def specs(self) -> tuple[BufferSpec, ...]:
        """Return all that is alive together in the worst call."""
        size = self.setup.shard.size
        own = self.buffers(self.setup.limits, size, self._max_rows)
        return (*own, *self.merge.specs())

    def run(self, step: Step, views: tuple[Tensor, ...], out: MergeResult | None) -> MergeResult:
        """Score, select and merge the rows of ``step`` in views of `specs`."""
        keys, logits, scores, ids, *scratch = views
        batch = step.batch
        job = self.merge.begin(
            batch.rows,
            scratch=scratch,
            out=out,
            longest=batch.longest,
            block_table=batch.page_table if self.setup.slots else None,
            request_ids=batch.row_requests if self.setup.slots else None,
        )
        lengths = batch.local_lengths(self.setup.shard)
        for chunk in self.scored(step, keys, logits):
            planes = scores[: len(chunk.logits)], ids[: len(chunk.logits)]
            self._select(chunk, lengths[chunk.rows], *planes)
            job.pack(*planes)
        return job.finish()

    def chunk_rows(self, width: int) -> int:
        """Return how many rows of logits ``width`` wide are alive at once."""
        return min(self._rows, self._elements // max(1, width))

    def score(self, logits: Tensor, step: Step, rows: slice, keys: Tensor) -> None:
        """Fill ``logits`` with the scores of one request's rows and keys, if it has any."""
        if len(keys):
            weights = step.weights[rows] * self.setup.scale
            self.setup.score(logits, step.q[rows], weights, keys)

    def _select(self, chunk: Chunk, lengths: Tensor, scores: Tensor, ids: Tensor) -> None:
        """Write the rows' local top-K into the planes (n, K)."""
        k, masked = self.setup.limits.k, self.setup.mask_neg_inf
        local_topk(chunk.logits, k, chunk.starts, lengths, masked, (scores, ids))


def extent(limits: IndexerLimits, size: int, max_rows: int) -> tuple[int, int]:
    """Return the most rows, and the most elements, of logits that are alive at once."""
    rows = min(max_rows, CHUNK_ROWS)
    return rows, min(limits.logits_bytes // 4, rows * limits.local_tokens(size))


def window(flat: Tensor, rows: slice, width: int) -> Tensor:
    """Return the first elements of ``flat`` as a matrix of so many rows."""
    count = rows.stop - rows.start
    return flat[: count * width].view(count, width)


def within(rows: slice, outer: slice) -> slice:
    """Return ``rows`` counted from the first of ``outer``."""
    return slice(rows.start - outer.start, rows.stop - outer.start)


def blocks(first: int, end: int, size: int) -> Iterator[slice]:
    """Yield the slices that cover the rows ``first .. end - 1``, ``size`` at a time."""
    for start in range(first, end, size):
        yield slice(start, min(start + size, end))
