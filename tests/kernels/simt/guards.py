"""Memory in which a kernel's wrong reads and writes show."""

import ctypes
import mmap
from collections.abc import Sequence

import torch

ZONE = 512
_NOTHING = 0  # PROT_NONE


class Guards:
    """Tensors with poison before and behind them, between their rows, and in them.

    Args:
        poison: The byte: 0xFF makes -1 and NaN, 0xA5 a large negative number and a small one.
        device: Where; guards work on every device.
    """

    def __init__(self, poison: int = 0xA5, device: str | torch.device = "cpu") -> None:
        self.poison = poison
        self.device = torch.device(device)
        self._made: list[tuple[torch.Tensor, torch.Tensor]] = []

    def empty(self, *shape: int, dtype: torch.dtype, row_stride: int | None = None) -> torch.Tensor:
        """Return a poisoned tensor; `row_stride`, in elements, is at least the length of a row."""
        strides = list(torch.empty(shape, device="meta").stride())
        if row_stride is not None:
            strides[-2] = row_stride
            for axis in reversed(range(len(shape) - 2)):
                strides[axis] = strides[axis + 1] * shape[axis + 1]
        extent = _extent(shape, strides) * dtype.itemsize
        size = 2 * ZONE + extent + -extent % 16
        raw = torch.full((size,), self.poison, dtype=torch.uint8, device=self.device)
        made = _inside(raw, shape, strides, dtype)
        self._made.append((raw, made))
        return made

    def copy(self, tensor: torch.Tensor, row_stride: int | None = None) -> torch.Tensor:
        """Return a guarded copy."""
        made = self.empty(*tensor.shape, dtype=tensor.dtype, row_stride=row_stride)
        return made.copy_(tensor)

    def check(self) -> None:
        """Raise AssertionError if anything but the tensors' own elements was written."""
        for raw, made in self._made:
            rest = raw.clone()
            if made.numel():
                inside = _inside(rest, made.shape, made.stride(), made.dtype)
                inside.view(torch.uint8).fill_(self.poison)
            wrong = (rest != self.poison).nonzero().flatten()
            if wrong.numel():
                at = int(wrong[0]) - ZONE
                raise AssertionError(
                    f"{made.dtype} {tuple(made.shape)} of strides {made.stride()}: "
                    f"{wrong.numel()} bytes outside were written, the first at byte {at}"
                )


def fenced(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU copy whose end touches memory that cannot be read or written."""
    return _at_a_fence(tensor.shape, tensor.dtype, readable=True).copy_(tensor)


def unreadable(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a CPU tensor of which no element can be read or written."""
    return _at_a_fence(shape, dtype, readable=False)


def _at_a_fence(shape: Sequence[int], dtype: torch.dtype, *, readable: bool) -> torch.Tensor:
    extent = _extent(shape, torch.empty(tuple(shape), device="meta").stride()) * dtype.itemsize
    body = extent + -extent % mmap.PAGESIZE
    memory = mmap.mmap(-1, body + mmap.PAGESIZE)
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    made = raw[body - extent : body].view(dtype).view(tuple(shape))
    closed = body if readable else 0
    libc = ctypes.CDLL(None, use_errno=True)
    start, size = ctypes.c_void_p(raw.data_ptr() + closed), ctypes.c_size_t(len(memory) - closed)
    if libc.mprotect(start, size, _NOTHING):
        raise OSError(ctypes.get_errno(), "mprotect")
    return made


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _inside(
    raw: torch.Tensor, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    body = raw[ZONE : len(raw) - ZONE].view(dtype)
    return body.as_strided(tuple(shape), tuple(strides), body.storage_offset())
