"""The one total order of candidates, as signed 64-bit keys: larger is better.

High word: the score's bits, made monotone as a signed integer. Low word: ``0xFFFFFFFF - id``, so
the smaller global id wins a tie. Valid keys of different tokens are distinct, and torch can sort
and compare them on every device. What must never win is `PAD`, the smallest key of all.
"""

import torch
from torch import Tensor

PAD = -(1 << 63)
BEST = (1 << 63) - 1
MAX_ID = (1 << 31) - 1

_LOW = 0xFFFFFFFF
_INF = 0x7F800000


def encode(scores: Tensor, ids: Tensor, *, mask_neg_inf: bool) -> Tensor:
    """Return the keys of candidates.

    Only bits are looked at: arithmetic would depend on the thread's flush-to-zero mode.

    Args:
        scores: float32, any shape. NaN never wins; -0.0 equals 0.0.
        ids: int64 that broadcasts to it; what lies outside 0 .. 2^31 - 1 is padding.
        mask_neg_inf: Whether -inf means masked; otherwise it is the lowest score that may win.
    """
    bits = scores.detach().view(torch.int32)
    word = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    word = word.masked_fill(word == -1, 0)
    ordered = (word >= ~_INF + mask_neg_inf) & (word <= _INF)
    valid = ordered & (ids >= 0) & (ids <= MAX_ID)
    return ((word.to(torch.int64) << 32) | (_LOW - ids)).masked_fill(~valid, PAD)


def scores_of(keys: Tensor) -> Tensor:
    """Return the float32 scores; -inf for `PAD`, 0.0 where it was -0.0."""
    word = score_words(keys).to(torch.int32)
    bits = word ^ ((word >> 31) & 0x7FFFFFFF)
    return bits.view(torch.float32).masked_fill(keys == PAD, -torch.inf)


def ids_of(keys: Tensor) -> Tensor:
    """Return the int64 global ids; -1 for `PAD`, and for any key that `encode` never makes.

    Keys stripped by `id_words` give the same.
    """
    ids = _LOW - id_words(keys)
    return ids.masked_fill(ids > MAX_ID, -1)


def score_words(keys: Tensor) -> Tensor:
    """Return the part of the keys that compares scores alone."""
    return keys >> 32


def id_words(keys: Tensor) -> Tensor:
    """Return the part of the keys that compares ids alone: the smaller id is larger, `PAD` is 0."""
    return keys & _LOW
