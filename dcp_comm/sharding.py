"""Who owns which token: positions are dealt over the ranks in stripes of ``interleave`` tokens.

With size ``p`` and interleave ``S``, stripe ``g // S`` belongs to rank ``g // S % p``, and a rank
keeps its stripes back to back. Three translations and one length follow, as vLLM and SGLang have
them (``cp_kv_cache_interleave_size``):

====================  ============================================
``owner(g)``          ``g // S % p``
``local_index(g)``    ``g // (p * S) * S + g % S``
``global_index(j)``   ``(j // S * p + rank) * S + j % S``
``local_length(L)``   how many of the positions ``0 .. L-1`` a rank owns
====================  ============================================

Every function takes a Python int or an integer tensor of any shape and returns the same kind,
dtype and shape in a new object. The arithmetic runs in 64 bits, so that an answer is right
whenever it fits the dtype that came. A negative position is padding and stays -1; a negative
length counts as 0.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from dcp_comm.checks import check_int
from dcp_comm.errors import CommArgumentError, refusal

__all__ = ["Shard", "global_index", "local_index", "local_length", "owner"]

Integers = TypeVar("Integers", int, torch.Tensor)

_DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
)


def owner(g: Integers, *, size: int, interleave: int = 1) -> Integers:
    """Return the rank that owns each global position.

    Args:
        g: Global positions, an int or an integer tensor of any shape.
        size: Number of ranks ``p``.
        interleave: Tokens a stripe ``S``.

    Returns:
        Ranks in ``0 .. p-1``, like ``g``; -1 where ``g`` is negative.

    Raises:
        CommArgumentError: ``g`` holds no integers, or size or interleave is not a positive int.
    """
    _check_deal("owner", size, interleave)
    return _each("owner", "g", g, lambda g: g // interleave % size)


def local_index(g: Integers, *, size: int, interleave: int = 1) -> Integers:
    """Return where each global position lies within the rank that owns it.

    Args:
        g: Global positions, an int or an integer tensor of any shape.
        size: Number of ranks ``p``.
        interleave: Tokens a stripe ``S``.

    Returns:
        Local positions, like ``g``; -1 where ``g`` is negative.

    Raises:
        CommArgumentError: ``g`` holds no integers, or size or interleave is not a positive int.
    """
    _check_deal("local_index", size, interleave)
    return _each(
        "local_index",
        "g",
        g,
        lambda g: g // (size * interleave) * interleave + g % interleave,
    )


def global_index(j: Integers, *, rank: int, size: int, interleave: int = 1) -> Integers:
    """Return the global position of each local position of one rank.

    Args:
        j: Local positions, an int or an integer tensor of any shape.
        rank: The rank that owns them, ``0 .. p-1``.
        size: Number of ranks ``p``.
        interleave: Tokens a stripe ``S``.

    Returns:
        Global positions, like ``j``; -1 where ``j`` is negative. They must fit the dtype of ``j``.

    Raises:
        CommArgumentError: ``j`` holds no integers, or rank, size or interleave is out of range.
    """
    _check_deal("global_index", size, interleave, rank)
    return _each(
        "global_index",
        "j",
        j,
        lambda j: (j // interleave * size + rank) * interleave + j % interleave,
    )


def local_length(length: Integers, *, rank: int, size: int, interleave: int = 1) -> Integers:
    """Return how many of the first ``length`` global positions one rank owns.

    A rank owns every ``p``-th whole stripe, and the cut one when its turn has come; over all ranks
    the lengths sum to ``length``. A chunk's local length is the difference at its two bounds, and
    speculative rows are expanded to their own global lengths before they come here.

    Args:
        length: Global lengths, an int or an integer tensor of any shape.
        rank: The rank that is asked about, ``0 .. p-1``.
        size: Number of ranks ``p``.
        interleave: Tokens a stripe ``S``.

    Returns:
        Local lengths, like ``length``; 0 where ``length`` is negative.

    Raises:
        CommArgumentError: ``length`` holds no integers, or rank, size or interleave is out of
            range.
    """
    _check_deal("local_length", size, interleave, rank)

    def count(length: Any) -> Any:
        stripes, cut = length // interleave, length % interleave
        whole = (stripes + size - 1 - rank) // size
        return whole * interleave + cut * (stripes % size == rank)

    return _each("local_length", "length", length, count, negative=0)


@dataclass(frozen=True)
class Shard:
    """One rank's place in the deal, with this module's functions bound to it.

    Attributes:
        rank: This rank's place in the interleave, ``0 .. size-1``.
        size: Number of ranks.
        interleave: Tokens a stripe.

    Raises:
        CommArgumentError: A value is not an int or out of range.
    """

    rank: int
    size: int
    interleave: int = 1

    def __post_init__(self) -> None:
        _check_deal("Shard", self.size, self.interleave, self.rank)

    def owner(self, g: Integers) -> Integers:
        """Return `owner` of global positions ``g``."""
        return owner(g, size=self.size, interleave=self.interleave)

    def local_index(self, g: Integers) -> Integers:
        """Return `local_index` of global positions ``g``, whoever owns them."""
        return local_index(g, size=self.size, interleave=self.interleave)

    def global_index(self, j: Integers) -> Integers:
        """Return `global_index` of this rank's local positions ``j``."""
        return global_index(j, rank=self.rank, size=self.size, interleave=self.interleave)

    def local_length(self, length: Integers) -> Integers:
        """Return `local_length` of global lengths on this rank."""
        return local_length(length, rank=self.rank, size=self.size, interleave=self.interleave)


def _each(
    function: str,
    argument: str,
    value: Integers,
    formula: Callable[[Any], Any],
    negative: int = -1,
) -> Integers:
    """Apply a formula for values >= 0 to an int or, in 64 bits, to a tensor."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in _DTYPES:
            raise _refused(function, argument, value.dtype, "an integer tensor", "Cast it first")
        wide = value.to(torch.int64)
        result: torch.Tensor = formula(wide).masked_fill_(wide < 0, negative)
        return result.to(value.dtype)
    if not isinstance(value, int) or isinstance(value, bool):
        need = "an int or an integer tensor"
        raise _refused(function, argument, repr(value), need, "Convert it with int()")
    return int(formula(value)) if value >= 0 else negative


def _check_deal(function: str, size: int, interleave: int, rank: int = 0) -> None:
    # Both at most 2^31 - 1: their product then fits the 64 bits that tensors are computed in.
    check_int(f"sharding.{function}", "size", size, 1)
    check_int(f"sharding.{function}", "interleave", interleave, 1)
    check_int(f"sharding.{function}", "rank", rank, 0, size - 1)


def _refused(function: str, argument: str, got: object, need: str, remedy: str) -> Exception:
    return CommArgumentError(refusal(f"sharding.{function}", argument, got, need, remedy=remedy))
