"""Words to keys, queries and weights: seeded hashing, small integers, a window of context.

A word's vector is its hash. A token's key sums the vectors of the words up to it, the nearest
counting most; head h of a query is the vector of the word h places before, weighted by how rare
that word is. So ``score(t, s) = sum over h of w[t, h] * relu(q[t, h] . k[s])`` asks how much of the
text before t, by rarity, stands just before s.

All of it is integers, and no score can reach `SCORE_BOUND` < 2^24: float32 holds every score and
every partial sum exactly, in any order of summation, so that no comparison hides behind rounding.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from dcp_comm.cli.demo.corpus import fold

HEADS, DIM = 8, 64
COMPONENT = 10
"""Largest component of a word's vector; the smallest is its negative."""
CONTEXT = (8, 4, 2, 1)
"""What a key takes of its own word's vector, of the one before, and so on."""
RAREST = 15
"""Weight of a word that occurs once; half as much rarity, one less."""

SCORE_BOUND = HEADS * RAREST * DIM * COMPONENT * COMPONENT * sum(CONTEXT) + 1

_SEED = b"dcp_comm demo"


class Embedding:
    """The words of one corpus, hashed and counted.

    Args:
        words: Every word that will be asked for, as often as it occurs.
        device: Where the tensors live.
    """

    def __init__(self, words: Sequence[str], device: torch.device) -> None:
        counts = Counter(map(fold, words))
        self._place = {word: place for place, word in enumerate(counts)}
        self._device = device
        self._vectors = _hashed(list(counts)).to(device)
        weights = [max(1, RAREST + 1 - count.bit_length()) for count in counts.values()]
        self._weights = torch.tensor(weights, dtype=torch.float32, device=device)

    def keys(self, words: Sequence[str]) -> Tensor:
        """Return one key a word, float32 (n, DIM)."""
        vectors = self._vectors[self._index(words)]
        windows = (share * _later(vectors, back) for back, share in enumerate(CONTEXT))
        return torch.stack(list(windows)).sum(0)

    def queries(self, words: Sequence[str], positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return queries float32 (m, HEADS, DIM) and weights (m, HEADS) at some of the words."""
        index = self._index(words)
        rows = torch.tensor(positions, device=self._device)
        back = torch.arange(HEADS, device=self._device)
        asked = rows[:, None] - back
        word = index[asked.clamp(min=0)]
        exists = (asked >= 0).to(torch.float32)
        return self._vectors[word], self._weights[word] * exists

    def _index(self, words: Sequence[str]) -> Tensor:
        return torch.tensor([self._place[fold(word)] for word in words], device=self._device)


def _hashed(words: list[str]) -> Tensor:
    """Return float32 (n, DIM), components in -COMPONENT .. COMPONENT."""
    digests = (
        hashlib.blake2b(word.encode(), digest_size=DIM, key=_SEED).digest() for word in words
    )
    raw = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(-1, DIM)
    return raw.to(torch.float32) % (2 * COMPONENT + 1) - COMPONENT


def _later(vectors: Tensor, places: int) -> Tensor:
    """Shift rows (n, DIM) towards the end; nothing stands before the first."""
    return pad(vectors, (0, 0, places, 0))[: len(vectors)]
