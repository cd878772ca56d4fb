"""Rows to merge: how their scores lie, who holds what, and who wins by a plain stable sort.

Every rank draws the same whole rows from the same seed, keeps its own columns, and so knows the
answer without asking. Tokens are dealt one at a time: rank r of p holds the columns r, r + p, ...
Nothing here uses the library's keys or kernels.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 1 << 24
"""Scores that are sorted at a time."""
_HUGE = 1e30


@dataclass(frozen=True)
class Shape:
    """Query rows of one merge, and tokens of context, dealt over all ranks."""

    rows: int
    length: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.length}"


def draw(kind: str, shape: Shape, k: int, device: torch.device) -> Tensor:
    """Return scores float32 (rows, length) of one of `KINDS`, the same in every process."""
    numbers = torch.Generator(device).manual_seed(shape.rows * 31 + shape.length)
    return KINDS[kind](shape, numbers, k)


def winners(scores: Tensor, k: int) -> Tensor:
    """Return int32 (rows, k) columns: score descending, then column; -1 behind them."""
    best = scores.new_full((scores.shape[0], k), -1, dtype=torch.int32)
    for rows in blocks(scores):
        order = scores[rows].sort(dim=1, descending=True, stable=True).indices[:, :k]
        best[rows, : order.shape[1]] = order
    return best


def own(winners: Tensor, rank: int, size: int) -> Tensor:
    """Return the winners that a rank holds, as its local positions, in order, -1 behind them."""
    mine = (winners >= 0) & (winners % size == rank)
    order = (~mine).to(torch.uint8).sort(dim=1, stable=True).indices
    return torch.where(mine, winners // size, -1).gather(1, order)


def by_position(winners: Tensor) -> Tensor:
    """Return the same winners, ascending, -1 still behind them."""
    last = torch.iinfo(winners.dtype).max
    ascending = winners.masked_fill(winners < 0, last).sort(dim=1).values
    return ascending.masked_fill(ascending == last, -1)


def shuffled(winners: Tensor) -> Tensor:
    """Return each row in a random order, as a local kernel that sorts nothing may leave it."""
    mixed = torch.empty_like(winners)
    numbers = torch.Generator(winners.device).manual_seed(winners.shape[0])
    for rows in blocks(winners):
        part = winners[rows]
        order = torch.rand(part.shape, device=part.device, generator=numbers).argsort(dim=1)
        mixed[rows] = part.gather(1, order)
    return mixed


def differing(found: Tensor, wanted: Tensor) -> int:
    """Count the rows that are not equal."""
    return int((found != wanted).any(1).sum())


def other_scores(scores: Tensor, found: Tensor, wanted: Tensor) -> int:
    """Count the rows whose found columns are not as many different ones with the wanted scores."""
    wrong = 0
    for rows in blocks(scores):
        columns = found[rows].long().sort(dim=1).values
        legal = columns.clamp(0, scores.shape[1] - 1)
        bad = (columns != legal).any(1) | (columns.diff(dim=1) == 0).any(1)
        got = scores[rows].gather(1, legal).sort(dim=1, descending=True).values
        need = scores[rows].gather(1, wanted[rows].long())
        wrong += int((bad | (got != need).any(1)).sum())
    return wrong


def blocks(scores: Tensor) -> Iterator[slice]:
    """Yield slices of rows that hold about `_BLOCK` elements each."""
    step = max(1, _BLOCK // max(1, scores.shape[1]))
    for first in range(0, scores.shape[0], step):
        yield slice(first, min(first + step, scores.shape[0]))


def _random(shape: Shape, numbers: torch.Generator) -> Tensor:
    return torch.randn(shape.rows, shape.length, device=numbers.device, generator=numbers)


def _plateau(shape: Shape, numbers: torch.Generator, above: int) -> Tensor:
    """ReLU-like: about so many scores are above 0, and all others tie there."""
    uniform = torch.rand(shape.rows, shape.length, device=numbers.device, generator=numbers)
    return uniform.sub_(1 - min(0.5, above / shape.length)).clamp_(min=0)


def _skewed(shape: Shape, numbers: torch.Generator) -> Tensor:
    """A dense cluster at 1, and up to four scores far above it."""
    cluster = _random(shape, numbers).mul_(1e-3).add_(1)
    few = (shape.rows, 4)
    at = torch.randint(shape.length, few, device=numbers.device, generator=numbers)
    return cluster.scatter_(1, at, _HUGE)


KINDS: dict[str, Callable[[Shape, torch.Generator, int], Tensor]] = {
    "random": lambda shape, numbers, _: _random(shape, numbers),
    "plateau": lambda shape, numbers, k: _plateau(shape, numbers, k // 2),
    "skewed": lambda shape, numbers, _: _skewed(shape, numbers),
}
"""How the scores of a row may lie, given K: on a plateau the K-th is one of the ties."""
