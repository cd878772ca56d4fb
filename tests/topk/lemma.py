"""The block-splitter lemma in plain numpy, and the lists that reach its bounds.

Nothing here imports the product. Keys are ints above 0 and distinct, lists are descending, and 0 is
padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.oracle import Floats, Ints


@dataclass(frozen=True)
class Sizes:
    """t blocks settled, W winners open."""

    settled: int
    window: int


def sizes(k: int, size: int, block: int) -> Sizes:
    """The most splitters that may be taken for granted, by trying."""
    settled = 0
    while (settled + 1) * block + (size - 1) * (block - 1) <= k:
        settled += 1
    return Sizes(settled, k - settled * block)


def splitters(keys: Ints, block: int) -> Ints:
    """Every block-th key, and the last one."""
    found: Ints = keys[[*range(block - 1, len(keys) - 1, block), len(keys) - 1]]
    return found


def splitter_x(lists: Sequence[Ints], block: int, settled: int) -> float:
    """The settled-th largest splitter; 0 if there is none, infinity for none of them."""
    if settled == 0:
        return np.inf
    return float(np.sort(np.concatenate([splitters(each, block) for each in lists]))[-settled])


def winners(lists: Sequence[Ints], k: int) -> set[int]:
    """The k largest valid keys."""
    return {int(key) for key in np.sort(np.concatenate(lists))[-k:] if key > 0}


def tiers(rng: np.random.Generator, k: int, *counts: Sequence[int]) -> list[Ints]:
    """Lists of k keys, of which each rank has its counts in every tier; lower tiers are lower.

    What no tier takes is padding. The lowest key of the first tier is rank 0's, if it has one.
    """
    size = len(counts[0])
    parts: list[list[Ints]] = [[] for _ in range(size)]
    top = size * k + 1
    for number, tier in enumerate(counts):
        keys = top - 1 - rng.permutation(sum(tier))
        if number == 0 and tier[0]:
            lowest, last = int(np.argmin(keys)), tier[0] - 1
            keys[[lowest, last]] = keys[[last, lowest]]
        top -= sum(tier)
        for rank, part in enumerate(np.split(keys, np.cumsum(tier)[:-1])):
            parts[rank].append(np.sort(part)[::-1])
    lists = [np.concatenate(each) for each in parts]
    return [np.pad(each, (0, k - len(each))).astype(np.int64) for each in lists]


def spread(rng: np.random.Generator, total: int, size: int, most: int, others: int) -> list[int]:
    """Numbers that sum to total: the first at most ``most`` and not 0, each other ``others``."""
    counts = [min(1, total)] + [0] * (size - 1)
    limits = [most] + [others] * (size - 1)
    for _ in range(total - sum(counts)):
        free = [rank for rank in range(size) if counts[rank] < limits[rank]]
        counts[int(rng.choice(free))] += 1
    return counts


def all_open_on_one_rank(rng: np.random.Generator, k: int, size: int, block: int) -> list[Ints]:
    """Whatever is not settled wins on rank 0 alone, up to the last key of its window."""
    found = sizes(k, size, block)
    settled = np.array(spread(rng, found.settled, size, k // block, k // block)) * block
    opened = [found.window] + [0] * (size - 1)
    rest = k - settled - np.array(opened)
    return tiers(rng, k, settled.tolist(), opened, rest.tolist())


def most_above_x(rng: np.random.Generator, k: int, size: int, block: int) -> list[Ints]:
    """All ranks but rank 0 have block - 1 more keys above x than their splitters show."""
    found = sizes(k, size, block)
    full = spread(rng, found.settled, size, k // block, (k + 1) // block - 1)
    above = np.array(full) * block + (block - 1) * (np.arange(size) > 0) * (found.settled > 0)
    return tiers(rng, k, above.tolist(), (k - above).tolist())


def most_without_x(rng: np.random.Generator, k: int, size: int, block: int) -> list[Ints]:
    """As many valid keys as there can be while the settled-th splitter is padding."""
    blocks = sizes(k, size, block).settled - 1
    if blocks < 0:
        return tiers(rng, k, spread(rng, k - 1, size, k, k))
    valid = np.array(spread(rng, blocks, size, k, k)) * block + block - 1
    return tiers(rng, k, valid.tolist())


WORST = (all_open_on_one_rank, most_above_x, most_without_x)


def dealt(rows: Sequence[Sequence[Ints]]) -> Floats:
    """Scores (T, p * K) of rows of lists: token j * p + r is rank r's; NaN for padding."""
    wide = np.stack([np.stack(lists, axis=1).reshape(-1) for lists in rows]).astype(np.float32)
    return np.where(wide > 0, wide, np.float32(np.nan))
