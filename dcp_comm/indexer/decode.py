"""Decode: few rows a request, each request's keys read from its pages a tile at a time."""

from collections.abc import Iterator

from torch import Tensor

from dcp_comm.indexer.batch import Span
from dcp_comm.indexer.limits import IndexerLimits
from dcp_comm.indexer.pages import read_keys
from dcp_comm.indexer.path import Chunk, Path, Step, blocks, window, within

TILE_TOKENS = 4096


class Decode(Path):
    """Scores request after request; keys are used once, so only a tile of them is alive.

    Rows begin at column 0, and logits are as wide as the longest row of their chunk.
    """

    owner = "indexer decode"
    cache = "cache"

    @staticmethod
    def key_tokens(limits: IndexerLimits, size: int) -> int:
        """Return the tokens of one tile."""
        return min(TILE_TOKENS, limits.local_tokens(size))

    def scored(self, step: Step, keys: Tensor, logits: Tensor) -> Iterator[Chunk]:
        """Yield as many rows at a time as the longest of the batch allows."""
        size = self.chunk_rows(self.setup.most(step.batch.longest))
        for rows in blocks(0, step.batch.rows, size):
            spans = list(step.batch.spans(rows))
            width = self.setup.shard.local_length(max(span.longest for span in spans))
            matrix = window(logits, rows, width)
            for span in spans:
                self._score(matrix[within(span.rows, rows)], step, span, keys)
            yield Chunk(rows, matrix, None)

    def _score(self, logits: Tensor, step: Step, span: Span, keys: Tensor) -> None:
        """Score one request's rows, tile by tile."""
        pages = step.batch.page_table[span.request]
        count = self.setup.shard.local_length(span.longest)
        for tile in blocks(0, count, len(keys)):
            mine = keys[: tile.stop - tile.start]
            read_keys(mine, step.cache, pages, tile.start)
            self.score(logits[:, tile], step, span.rows, mine)
