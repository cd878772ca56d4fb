"""Caches as the field stores them, byte by byte in numpy; nothing here imports the product.

fp8 e4m3: a sign, four bits of exponent (bias 7) and three of fraction; no infinity, one NaN.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

NAMES = ("float32", "bfloat16", "fp8")
Cache = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


def _decoded(code: int) -> float:
    sign, exponent, fraction = -1 if code >> 7 else 1, code >> 3 & 15, code & 7
    if exponent == 15 and fraction == 7:
        return float("nan")
    scaled = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return sign * scaled


CODES = np.array([_decoded(code) for code in range(256)], dtype=np.float32)


def encoded(values: Floats) -> npt.NDArray[np.uint8]:
    """The nearest codes, ties to even."""
    positive = CODES[:127].astype(np.float64)
    size = np.abs(values.astype(np.float64))[..., None]
    distance = np.abs(positive - size)
    odd = np.arange(127) % 2
    best = np.lexsort((np.broadcast_to(odd, distance.shape), distance), axis=-1)[..., 0]
    return np.asarray(best + 128 * np.signbit(values), dtype=np.uint8)


def quantized(key: Floats, *, power_of_two: bool) -> tuple[npt.NDArray[np.uint8], np.float32]:
    """A key's codes and scale."""
    scale = np.float32(max(np.abs(key).max(), np.float32(1e-4)) / np.float32(448))
    if power_of_two:
        exponent = next(n for n in range(-30, 128) if 2.0**n >= scale)
        scale = np.float32(2.0**exponent)
    return encoded(key.astype(np.float32) / scale), scale


def empty(
    storage: str, rng: np.random.Generator, pages: int, page_size: int, head_dim: int
) -> Cache:
    """Pages of junk."""
    if storage == "fp8":
        return rng.integers(0, 256, (pages, page_size, head_dim + 4)).astype(np.uint8)
    junk = (np.nan, 3e38, -1e4, np.inf)
    return rng.choice(junk, (pages, page_size, head_dim)).astype(np.float32)


def put(storage: str, cache: Cache, slot: tuple[int, int], key: npt.NDArray[Any]) -> None:
    """Store a token's key; as fp8 with a power of two for a scale, exact for small integers."""
    page, place = slot
    if storage != "fp8":
        cache[page, place] = key
        return
    codes, scale = quantized(key.astype(np.float32), power_of_two=True)
    put_bytes(cache, slot, codes, scale)


def put_bytes(
    cache: Cache, slot: tuple[int, int], codes: npt.NDArray[np.uint8], scale: np.float32
) -> None:
    """All values of a page come first, then all scales."""
    (page, place), dim, page_size = slot, len(codes), cache.shape[1]
    raw = cache[page].reshape(-1)
    raw[place * dim : (place + 1) * dim] = codes
    first = page_size * dim + 4 * place
    raw[first : first + 4] = np.frombuffer(np.float32(scale).tobytes(), dtype=np.uint8)


def key_at(cache: Cache, slot: tuple[int, int]) -> Floats:
    """What a fp8 cache holds, dequantised."""
    (page, place), dim, page_size = slot, cache.shape[2] - 4, cache.shape[1]
    raw = cache[page].reshape(-1)
    first = page_size * dim + 4 * place
    scale = np.frombuffer(raw[first : first + 4].tobytes(), dtype=np.float32)[0]
    return np.asarray(CODES[raw[place * dim : (place + 1) * dim]] * scale, dtype=np.float32)


def tensor(storage: str, cache: Cache) -> Tensor:
    """The cache for torch; small integers are exact in bfloat16."""
    found = torch.from_numpy(cache)
    return found.bfloat16() if storage == "bfloat16" else found
