"""The selection contract in plain numpy, and the deal of tokens from first principles.

Nothing here imports the product: a whole row is sorted stably, and tokens are dealt one by one.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=256)
def deal(length: int, size: int, interleave: int) -> tuple[tuple[int, ...], ...]:
    """Return each rank's tokens, ``interleave`` dealt at a time, in turn."""
    hands: list[list[int]] = [[] for _ in range(size)]
    rank, dealt = 0, 0
    for token in range(length):
        if dealt == interleave:
            rank, dealt = (rank + 1) % size, 0
        hands[rank].append(token)
        dealt += 1
    return tuple(map(tuple, hands))


def place(token: Ints, size: int, interleave: int) -> tuple[Ints, Ints]:
    """Return (rank, local position) of tokens too far out to be dealt one by one."""
    whole_rounds, rest = np.divmod(token, size * interleave)
    rank, within = np.divmod(rest, interleave)
    return rank, whole_rounds * interleave + within


def order_of(scores: Floats, *, mask_neg_inf: bool = True) -> Ints:
    """Return the positions of a row that may win, best first."""
    wide = scores.astype(np.float64)  # exact, and -0.0 == 0.0 there; subnormals become normal
    legal = ~np.isnan(wide)
    if mask_neg_inf:
        legal &= wide != -np.inf
    positions = np.flatnonzero(legal)
    return positions[np.argsort(-wide[positions], kind="stable")].astype(np.int64)


def topk(
    scores: Floats, lengths: npt.ArrayLike, k: int, *, mask_neg_inf: bool = True
) -> tuple[Ints, Ints]:
    """Return (T, k) winners, best first, -1 behind them, and their counts, of scores (T, L)."""
    ids = np.full((len(scores), k), -1, dtype=np.int64)
    for row, (values, length) in enumerate(zip(scores, np.asarray(lengths), strict=True)):
        best = order_of(values[: max(0, int(length))], mask_neg_inf=mask_neg_inf)[:k]
        ids[row, : len(best)] = best
    return ids, (ids >= 0).sum(1)


def topk_of_candidates(scores: Floats, tokens: Ints, k: int) -> Ints:
    """Return one row's winners among (score, token) pairs in any order, for tokens far apart."""
    by_token = np.argsort(tokens, kind="stable")
    best = tokens[by_token][order_of(scores[by_token])[:k]]
    return np.concatenate([best, np.full(k - len(best), -1, dtype=np.int64)])


def by_position(ids: Ints) -> Ints:
    """Return the same winners, ascending, -1 still behind them."""
    far = np.where(ids < 0, np.iinfo(np.int64).max, ids)
    far.sort(axis=1)
    return np.where(far == np.iinfo(np.int64).max, -1, far)


def own_winners(ids: Ints, rank: int, size: int, interleave: int) -> tuple[Ints, Ints]:
    """Return one rank's share of winners (T, k), as local positions in order, and counts."""
    local = np.full_like(ids, -1)
    counts = np.zeros(len(ids), dtype=np.int64)
    owners, positions = place(ids, size, interleave)
    for row, owned in enumerate((owners == rank) & (ids >= 0)):
        counts[row] = owned.sum()
        local[row, : counts[row]] = positions[row, owned]
    return local, counts
