"""What a buffer is and how several lie in one arena: sizes only, no memory."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dcp_comm.checks import check_int, check_name
from dcp_comm.errors import CommArgumentError, refusal

__all__ = ["ALIGNMENT", "BufferSpec", "layout"]

ALIGNMENT = 256
"""Bytes to which arenas and the views in them are aligned."""


@dataclass(frozen=True)
class BufferSpec:
    """One buffer that a stage needs.

    Attributes:
        name: What the buffer is for; shown in errors, never used to find memory.
        shape: Sizes, each >= 0; ``()`` is one element.
        dtype: Element type.

    Raises:
        CommArgumentError: A field is not of its kind, or a size is negative.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        check_name("BufferSpec", "name", self.name)
        if not isinstance(self.shape, Iterable):
            raise _refused(
                "BufferSpec", "shape", self.shape, "a tuple of ints >= 0", "Pass (n,) for one axis"
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        for size in self.shape:
            check_int("BufferSpec", "shape", size, 0, 2**63 - 1)
        if not isinstance(self.dtype, torch.dtype):
            raise _refused(
                "BufferSpec", "dtype", self.dtype, "a torch.dtype", "Pass torch.int32, say"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the elements alone, without alignment."""
        return math.prod(self.shape) * self.dtype.itemsize


def layout(operation: str, specs: Iterable[BufferSpec]) -> tuple[list[int], int]:
    """Lay buffers one after another, each rounded up to `ALIGNMENT`.

    Args:
        operation: Who asks, for the error.
        specs: Buffers that are alive together.

    Returns:
        Each buffer's offset in bytes, and the bytes of all.

    Raises:
        CommArgumentError: One of ``specs`` is no BufferSpec.
    """
    offsets, end = [], 0
    for spec in specs:
        if not isinstance(spec, BufferSpec):
            need, remedy = "a BufferSpec in every place", "Unpack sequences with *"
            raise _refused(operation, "specs", spec, need, remedy)
        offsets.append(end)
        end += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _refused(
    operation: str, argument: str, got: object, need: str, remedy: str
) -> CommArgumentError:
    return CommArgumentError(refusal(operation, argument, repr(got), need, remedy=remedy))
