"""How scores and row lengths may lie: what selection goes wrong on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracle import Floats, Ints


def drawn(kind: str, rows: int, length: int, rng: np.random.Generator) -> Floats:
    """Scores (rows, length) of one of `KINDS`."""
    scores = KINDS[kind](rng, (rows, length))
    return np.asarray(scores, dtype=np.float32)


def _specials(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    pool = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-39, -65504, -7e4, -3e38]
    return np.where(rng.random(shape) < 0.5, rng.choice(pool, shape), rng.normal(size=shape))


def _ulps(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    return (0x3F900000 + rng.integers(-40, 40, shape)).astype(np.int32).view(np.float32)


def _plateau(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    zeros = np.where(rng.random(shape) < 0.5, 0.0, -0.0)
    return np.where(rng.random(shape) < 0.2, rng.integers(1, 4, shape), zeros)


def _skewed(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[Any]:
    return np.where(np.arange(shape[1]) % 8 == 0, 1e3, 0) + rng.normal(size=shape)


KINDS: dict[str, Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[Any]]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "few": lambda rng, shape: rng.integers(-2, 3, shape),
    "equal": lambda rng, shape: np.ones(shape),
    "plateau": _plateau,
    "ulps": _ulps,
    "specials": _specials,
    "skewed": _skewed,
    "nothing": lambda rng, shape: np.full(shape, np.nan),
}
"""How scores may lie: ties, ReLU plateaus of both zeros, one ulp apart, specials, one-sided."""


def drawn_lengths(rows: int, length: int, k: int, rng: np.random.Generator) -> Ints:
    """Row lengths: full, none, short, fewer than K, just above K, or anything."""
    pool = np.array([length, length, 0, 3, k - 1, k, k + 3, int(rng.integers(0, length + 1))])
    return np.asarray(np.clip(rng.choice(pool, rows), 0, length), dtype=np.int64)
