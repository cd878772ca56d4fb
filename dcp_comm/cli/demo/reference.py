"""The answer, the plain way: whole rows, unsharded, in float64, by one stable sort each.

Nothing here comes from the library that is being checked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dcp_comm.cli.demo.requests import Part, Segment

_BLOCK_ROWS = 4


@dataclass(frozen=True)
class Answers:
    """Some rows' winners, best first, -1 behind them.

    Attributes:
        exact: int32 (m, K), by the scores as they are.
        plateau: int32 (m, K), by the scores above half of the row's highest, else 0.
        largest: The largest score.
        whole: Whether every score was a whole number below 2^24.
    """

    exact: Tensor
    plateau: Tensor
    largest: float
    whole: bool


def answer(segments: Sequence[Segment], k: int, first: int, every: int) -> Answers:
    """Answer rows ``first``, ``first + every`` and so on, counted through all segments."""
    exact, plateau, largest, whole = [], [], 0.0, True
    for scores in _rows(segments, first, every):
        exact.append(_best(scores, k))
        plateau.append(_best((scores - (scores.max() / 2).floor()).relu(), k))
        largest = max(largest, float(scores.max()))
        whole = whole and bool((scores == scores.round()).all())
    return Answers(_stacked(exact, k), _stacked(plateau, k), largest, whole and largest < 2**24)


def _rows(segments: Sequence[Segment], first: int, every: int) -> Iterator[Tensor]:
    """Yield the scores of the tokens that each of the rows sees, float64 (length,)."""
    done = 0
    for part in (part for segment in segments for part in segment.parts):
        rows = torch.tensor(range((first - done) % every, len(part.lengths), every))
        done += len(part.lengths)
        keys = part.keys.double()
        for block in rows.long().split(_BLOCK_ROWS):
            for scores, length in zip(_scores(part, keys, block), part.lengths[block], strict=True):
                yield scores[: int(length)]


def _scores(part: Part, keys: Tensor, rows: Tensor) -> Tensor:
    """Return float64 (rows, n), by the definition of the sparse indexer's score."""
    queries, weights = part.queries[rows].double(), part.weights[rows].double()
    return torch.einsum("th,thn->tn", weights, (queries @ keys.T).relu())


def _best(scores: Tensor, k: int) -> Tensor:
    """Return int32 (k,): a stable descending sort leaves the smaller position first in a tie."""
    order = scores.float().sort(descending=True, stable=True).indices[:k]
    return pad(order.to(torch.int32), (0, k - len(order)), value=-1)


def _stacked(rows: list[Tensor], k: int) -> Tensor:
    return torch.stack(rows) if rows else torch.empty(0, k, dtype=torch.int32)
