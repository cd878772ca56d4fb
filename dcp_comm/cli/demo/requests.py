"""One step of an engine: query rows of several requests, in segments as it would pack them.

Prefill rows are causal: a row at position t sees t + 1 tokens. Decode requests have read the book
up to different words and bring two rows each, as speculative decoding does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.cli.demo.corpus import QUESTION, Book
from dcp_comm.cli.demo.embedding import Embedding

_NEXT_N = 2


@dataclass(frozen=True)
class Part:
    """Rows of requests that share a cache.

    Attributes:
        keys: float32 (n, DIM), of the whole cache, unsharded.
        queries: float32 (m, HEADS, DIM).
        weights: float32 (m, HEADS).
        lengths: int32 (m,), tokens that each row sees.
    """

    keys: Tensor
    queries: Tensor
    weights: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Segment:
    """Rows whose logits an engine computes into one matrix, its parts' caches side by side."""

    name: str
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(len(part.lengths) for part in self.parts)


def step(book: Book, rows: int, device: torch.device) -> tuple[Segment, ...]:
    """Return ``rows`` rows from the book and, last, the question about its needle."""
    words, question, size = book.words, QUESTION.split(), len(book.words)
    embedding = Embedding([*words, *question], device)
    whole_book = embedding.keys(words)
    chapter, opening = words[size // 4 : size // 2], words[size // 2 :]
    in_book, in_chapter, in_opening, in_decode = _shares(rows)

    def part(text: Sequence[str], positions: Sequence[int], keys: Tensor | None = None) -> Part:
        lengths = torch.tensor(positions, dtype=torch.int32, device=device) + 1
        keys = embedding.keys(text) if keys is None else keys
        return Part(keys, *embedding.queries(text, positions), lengths)

    asked = embedding.queries(question, [len(question) - 1])
    everything = torch.tensor([size], dtype=torch.int32, device=device)
    prefill = (
        part(words, range(size - in_book, size), whole_book),
        part(chapter, range(len(chapter) - in_chapter, len(chapter))),
        part(opening[:in_opening], range(in_opening)),
    )
    return (
        Segment("prefill", prefill),
        Segment("decode", (part(words, _decode_positions(size, in_decode), whole_book),)),
        Segment("question", (Part(whole_book, *asked, everything),)),
    )


def _shares(rows: int) -> tuple[int, int, int, int]:
    """Deal rows to the end of the book, a chapter, a request just begun, and decode."""
    chapter, opening, decode = rows // 6, min(64, rows // 10), rows // 5 * _NEXT_N
    return rows - chapter - opening - decode, chapter, opening, decode


def _decode_positions(size: int, rows: int) -> list[int]:
    """Return two neighbouring positions a request, the requests spread over the second half."""
    requests = rows // _NEXT_N
    ends = [size - (size // 2) * request // requests for request in range(requests)]
    return [end - _NEXT_N + row for end in reversed(ends) for row in range(_NEXT_N)]
