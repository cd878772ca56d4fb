"""Prefill: keys gathered once, packed request after request, under all rows that read them."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dcp_comm.indexer.limits import IndexerLimits
from dcp_comm.indexer.pages import read_keys
from dcp_comm.indexer.path import Chunk, Path, Step, blocks, window, within


class Prefill(Path):
    """Gathers as many requests as the buffer holds, scores their rows, goes on to the next.

    The buffer holds the tokens of one request of ``max_model_len`` that a rank owns at most, so
    that any request fits, and short ones share it. Logits are packed as their keys are: a row's
    tokens begin in a column of its own.
    """

    owner = "indexer prefill"
    cache = "keys"

    @staticmethod
    def key_tokens(limits: IndexerLimits, size: int) -> int:
        """Return what a rank owns of one longest request."""
        return limits.local_tokens(size)

    def scored(self, step: Step, keys: Tensor, logits: Tensor) -> Iterator[Chunk]:
        """Yield the chunks of one group of requests after another."""
        batch = step.batch
        bounds = [self.setup.most(length) for length in batch.contexts]
        for group in groups(bounds, len(keys)):
            starts = self._gather(step, group, keys)
            size = self.chunk_rows(sum(bounds[group.start : group.stop]))
            for rows in blocks(batch.firsts[group.start], batch.firsts[group.stop], size):
                yield self._chunk(step, rows, starts, keys, logits)

    def _gather(self, step: Step, group: range, keys: Tensor) -> dict[int, int]:
        """Read the keys of a group of requests; return where each one's begin."""
        counts = [self.setup.shard.local_length(step.batch.contexts[each]) for each in group]
        starts = dict(zip(group, accumulate(counts, initial=0), strict=False))
        for request, count in zip(group, counts, strict=True):
            mine = keys[starts[request] :][:count]
            read_keys(mine, step.cache, step.batch.page_table[request])
        return starts

    def _chunk(
        self, step: Step, rows: slice, starts: dict[int, int], keys: Tensor, logits: Tensor
    ) -> Chunk:
        """Score some rows against the keys of their own requests."""
        batch, shard = step.batch, self.setup.shard
        spans = list(batch.spans(rows))
        left = starts[spans[0].request]
        ends = [starts[each.request] + shard.local_length(each.longest) for each in spans]
        matrix = window(logits, rows, ends[-1] - left)
        for span, end in zip(spans, ends, strict=True):
            own = slice(starts[span.request], end)
            columns = within(own, slice(left, end))
            self.score(matrix[within(span.rows, rows), columns], step, span.rows, keys[own])
        return Chunk(rows, matrix, self._row_starts(step, rows, starts) - left)

    def _row_starts(self, step: Step, rows: slice, starts: dict[int, int]) -> Tensor:
        """Return where each row's keys begin, int64 (n,)."""
        first, *_ = starts
        by_request = torch.tensor(list(starts.values()), device=step.q.device)
        return by_request[step.batch.row_requests[rows] - first]


def groups(tokens: Sequence[int], capacity: int) -> Iterator[range]:
    """Cut requests of so many tokens each, none above the capacity, into groups that fit it."""
    first = total = 0
    for request, count in enumerate(tokens):
        if total + count > capacity:
            yield range(first, request)
            first, total = request, 0
        total += count
    if first < len(tokens):
        yield range(first, len(tokens))
