"""Tensors between guards, and data that no two ranks, calls or positions share."""

import math
import warnings
import zlib
from functools import cache

import torch
from torch import Tensor

from dcp_comm.contract import byte_view

GUARD_BYTES = 64
POISON = 0xA5


class Buffer:
    """A poisoned tensor with guard bytes on both sides.

    Args:
        shape: Of the tensor.
        dtype: Of the tensor.
        device: Of the tensor.
        shift: Elements by which the tensor starts after an aligned address.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        shift: int = 0,
    ) -> None:
        self._start = GUARD_BYTES + shift * dtype.itemsize
        self._end = self._start + math.prod(shape) * dtype.itemsize
        nbytes = self._end + GUARD_BYTES
        self._raw = torch.full((nbytes,), POISON, dtype=torch.uint8, device=device)
        self.tensor = self._raw[self._start : self._end].view(dtype).view(shape)

    @property
    def nbytes(self) -> int:
        """Bytes between the guards."""
        return self._end - self._start

    def write(self, data: Tensor) -> Tensor:
        """Overwrite the tensor with bytes and return it."""
        byte_view(self.tensor).copy_(data)
        return self.tensor

    def read(self) -> Tensor:
        """A copy of the tensor's bytes on the CPU."""
        return self._raw[self._start : self._end].to("cpu", copy=True)

    def is_guarded(self) -> bool:
        """Whether the guards are as they were."""
        raw = self._raw.cpu()
        return bool((raw[: self._start] == POISON).all() and (raw[self._end :] == POISON).all())


def payload(what: str, stamp: int, nbytes: int) -> Tensor:
    """Bytes that differ from any other stamp's (below 256) at every position.

    Args:
        what: Words of the call that they are for; other words give other bytes.
        stamp: Usually the rank they come from.
        nbytes: How many.
    """
    positions = torch.arange(nbytes, dtype=torch.int64) + zlib.crc32(what.encode())
    mixed = (positions * 0x9E3779B1 >> 15) + 37 * stamp
    return (mixed & 0xFF).to(torch.uint8)


def poison(nbytes: int) -> Tensor:
    """The bytes of a buffer that nobody wrote."""
    return torch.full((nbytes,), POISON, dtype=torch.uint8)


@cache
def dtypes(device: torch.device) -> tuple[torch.dtype, ...]:
    """Every dtype that this torch can allocate on a device, quantized ones apart."""
    known = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    return tuple(sorted((each for each in known if _is_plain(each, device)), key=str))


def _is_plain(dtype: torch.dtype, device: torch.device) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return not torch.empty(1, dtype=dtype, device=device).is_quantized
        except (RuntimeError, TypeError, NotImplementedError):
            return False
