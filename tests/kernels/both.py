"""A primitive run as CUDA kernels and as torch operations, on drawn inputs: all bits are compared.

What kernels read ends at memory that must not be read, or lies in poison; what they write is
poisoned before, and guarded.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dcp_comm.kernels.cuda.launcher import Launcher
from dcp_comm.kernels.cuda.primitives import CudaPrimitives
from dcp_comm.kernels.primitives import BlockTable, Emission, Primitives
from dcp_comm.kernels.torch_primitives import TorchPrimitives
from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import MAX_ID
from tests.kernels.simt.guards import Guards, fenced
from tests.topk.scores import KINDS

Array = npt.NDArray[Any]

PAGE = 8


def _crowded(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Most scores in one bin of as many as a block has, and of those that spread it again."""
    tiny = (1 << rng.integers(0, 30, shape)) + rng.integers(0, 2, shape)
    floats = tiny.astype(np.int32).view(np.float32)
    return np.where(rng.random(shape) < 0.5, floats, _tailed(rng, shape))


def _tailed(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    return np.exp(6 * rng.normal(size=shape)).astype(np.float32)


def _outliers(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Close together, but for a few, of which none or some are infinite."""
    scores = 1 + 1e-3 * rng.normal(size=shape)
    for row, few in zip(scores, (1, 4, 9, 60, 150, 300, 2), strict=False):
        row[rng.permutation(shape[1])[:few]] = rng.choice([1e30, 1e20, np.inf, 7])
    return scores


def _floored(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Many or few tie at the least value, and all others differ."""
    floor = np.linspace(-1.5, 1.5, shape[0])[:, None]
    return np.maximum(rng.normal(size=shape), floor)


SCORES = {
    **KINDS,
    "tailed": _tailed,
    "crowded": _crowded,
    "outliers": _outliers,
    "floored": _floored,
}


@dataclass(frozen=True)
class Point:
    """What is drawn, and how it is run.

    Attributes:
        kind: Of `SCORES`.
        k: Candidates a row and rank.
        size: Ranks.
        rows: Rows.
        interleave: Tokens a stripe.
        by_position: The order of what is emitted.
        poison: The byte that fills what is to be written.
        seed: Of the draws.
    """

    kind: str
    k: int
    size: int
    rows: int = 7
    interleave: int = 1
    by_position: bool = False
    poison: int = 0xA5
    seed: int = 0


class Both:
    """Both ways to run primitives, or kernels alone, and what to run them on."""

    def __init__(
        self, launcher: Launcher, point: Point, device: str = "cpu", *, alone: bool = False
    ) -> None:
        self.point, self.device = point, torch.device(device)
        self.kernels = CudaPrimitives(launcher, point.k, point.size)
        self.reference = TorchPrimitives()
        self._ways = (self.kernels,) if alone else (self.kernels, self.reference)
        self.rng = np.random.default_rng(point.seed)
        self._guards = Guards(point.poison, device)

    def shard(self, rank: int) -> Shard:
        """That rank's place in the deal."""
        return Shard(rank, self.point.size, self.point.interleave)

    def equal(
        self,
        run: Callable[[Primitives, Tensor], object],
        *shape: int,
        dtype: torch.dtype = torch.int64,
    ) -> Tensor:
        """Run each way into a tensor of its own; returns what all wrote.

        Raises:
            AssertionError: They differ, or wrote beside it.
        """
        outs = [self._guards.empty(*shape, dtype=dtype) for _ in self._ways]
        for way, out in zip(self._ways, outs, strict=True):
            run(way, out)
        self._guards.check()
        _assert_equal("output", outs[0], outs[-1])
        return outs[-1]

    def emit_equally(
        self,
        run: Callable[[Primitives, Emission], None],
        own: int | None,
        table: BlockTable | None = None,
    ) -> Emission:
        """`equal` for what writes winners: global ids, or rank ``own``'s positions or slots."""
        outs = [self._emission(own, table) for _ in self._ways]
        for way, out in zip(self._ways, outs, strict=True):
            run(way, out)
        self._guards.check()
        for name in ("ids", "counts", "certified", "uncertified"):
            _assert_equal(name, getattr(outs[0], name), getattr(outs[-1], name))
        return outs[-1]

    def bare_emission(self, own: int) -> Emission:
        """Where winners of rank ``own`` are written, and nothing need be behind them."""
        return replace(self._emission(own, None), tail=False)

    def _emission(self, own: int | None, table: BlockTable | None) -> Emission:
        rows, k, empty = self.point.rows, self.point.k, self._guards.empty
        uncertified = empty(1, dtype=torch.int64)[0].fill_(5)
        return Emission(
            empty(rows, k, dtype=torch.int32, row_stride=k + 3),
            empty(rows, dtype=torch.int32),
            empty(rows, dtype=torch.bool),
            uncertified,
            self.point.by_position,
            None if own is None else self.shard(own),
            table,
        )

    def give(self, values: Array | Tensor, gap: int = 0) -> Tensor:
        """The values on the device, ``gap`` elements behind each row, and none behind the last."""
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
        if tensor.dim() == 1 and gap:
            return self.give(tensor[:, None], gap)[:, 0]
        row_stride = tensor.shape[-1] + gap if gap else None
        if self.device.type != "cpu" or tensor.numel() == 0:
            return self._guards.copy(tensor, row_stride)
        if row_stride is None:
            return fenced(tensor)
        extent = len(tensor) * row_stride - gap
        strided = fenced(tensor.new_zeros(extent)).as_strided(tensor.shape, (row_stride, 1))
        return strided.copy_(tensor)

    def scores(self, width: int) -> Tensor:
        """Scores (rows, width)."""
        kind, shape = self.point.kind, (self.point.rows, width)
        return torch.from_numpy(np.asarray(SCORES[kind](self.rng, shape), dtype=np.float32))

    def candidates(self) -> tuple[Array, Array]:
        """Ids (rows, k) and lengths (rows,), each row in another way."""
        k, size, rng = self.point.k, self.point.size, self.rng
        styles = [LISTS[row % len(LISTS)] for row in range(self.point.rows)]
        ids = np.stack([style(rng, k, size) for style in styles]).astype(np.int32)
        pool = [2 * k, 2 * k, k, 3, 0, -5, k // size, k // size + 1, MAX_ID]
        return ids, rng.choice(pool, self.point.rows)

    def integers(self, values: Array, turn: int) -> Tensor | None:
        """One a row, as a caller may have them."""
        dtype, gap = INTEGERS[turn % len(INTEGERS)]
        return None if dtype is None else self.give(torch.from_numpy(values).to(dtype), gap)

    def runs(self) -> Tensor:
        """Sorted runs (p, rows, k) of all ranks."""
        point = self.point
        runs = torch.empty(point.size, point.rows, point.k, dtype=torch.int64)
        for rank, run in enumerate(runs):
            ids, lengths = map(torch.from_numpy, self.candidates())
            scores, shard = self.scores(point.k), self.shard(rank)
            self.reference.pack(run, scores, ids, lengths, shard=shard, mask_neg_inf=bool(rank % 2))
        return self.give(runs)

    def table(self, turn: int) -> BlockTable:
        """A block table that lacks pages, requests, and room for slots."""
        rows, pages = self.point.rows, 2 * self.point.k // PAGE
        requests = self.integers(self.rng.integers(-1, rows + 2, rows), turn)
        held = rows if requests is None else rows + 1
        table = self.rng.integers(-1, 99, (held, pages)).astype(np.int32)
        table[self.rng.random(table.shape) < 0.1] = MAX_ID
        return BlockTable(self.give(table, gap=turn % 2 * 5), requests, PAGE)


INTEGERS: tuple[tuple[torch.dtype | None, int], ...] = (
    (torch.int64, 0),
    (torch.int32, 0),
    (None, 0),
    (torch.int64, 1),
    (torch.int32, 2),
)
"""Dtype, and the gap between two rows' integers."""


def _some(rng: np.random.Generator, k: int, size: int) -> Array:
    ids = rng.permutation(2 * k)[:k]
    junk = rng.choice([-1, -(2**31), MAX_ID, 2 * k, 10 * k], k)
    return np.where(rng.random(k) < 0.1, junk, ids)


def _repeated(rng: np.random.Generator, k: int, size: int) -> Array:
    return rng.integers(-1, max(1, k // 3), k)


def _far(rng: np.random.Generator, k: int, size: int) -> Array:
    """Close together, but for a few at the end of what a global id can be."""
    ids = rng.permutation(k)
    ids[:3] = (MAX_ID + 1) // size - rng.permutation(9)[:3]
    return np.minimum(ids, MAX_ID)


def _powers(rng: np.random.Generator, k: int, size: int) -> Array:
    return (1 << rng.integers(0, 28, k)) // size


LISTS: tuple[Callable[[np.random.Generator, int, int], Array], ...] = (
    _some,
    lambda rng, k, size: rng.permutation(k),
    _repeated,
    _far,
    _powers,
)
"""How local ids may lie: any of 2 K with junk among them, all below K, repeated, far, crowded."""


def _assert_equal(what: str, ours: Tensor, right: Tensor) -> None:
    np.testing.assert_array_equal(ours.cpu().numpy(), right.cpu().numpy(), what)
