"""Aligned bytes from any allocator: the raw memory under a workspace."""

from collections.abc import Callable

import torch

from dcp_comm.errors import CommArgumentError, refusal
from dcp_comm.specs import ALIGNMENT

__all__ = ["Allocator", "allocate", "empty", "torch_allocator"]

Allocator = Callable[[int, torch.device], torch.Tensor]
"""``(nbytes, device)`` to a 1-D contiguous uint8 tensor of at least ``nbytes`` on ``device``."""

_WIDEST = 16  # bytes of complex128: torch reads it only from such offsets of a storage


def torch_allocator(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return ``nbytes`` from torch's own allocator, aligned on the CPU as they are on CUDA."""
    slack = ALIGNMENT - 1 if device.type == "cpu" else 0
    return _aligned(torch.empty(nbytes + slack, dtype=torch.uint8, device=device), nbytes)


def empty(device: torch.device | str) -> torch.Tensor:
    """Return an arena of no bytes, on the device that ``device`` stands for.

    Raises:
        CommArgumentError: torch knows no such device, or cannot use it here.
    """
    try:
        with torch.inference_mode(False):
            return torch.empty(0, dtype=torch.uint8, device=torch.device(device))
    except (TypeError, RuntimeError, AssertionError) as error:
        need, remedy = "a device that torch can use here", "Name one such as cpu or cuda:0"
        message = refusal("Workspace", "device", repr(device), need, remedy=remedy)
        raise CommArgumentError(message) from error


def allocate(nbytes: int, device: torch.device, allocator: Allocator) -> torch.Tensor:
    """Return an aligned arena of exactly ``nbytes``, a normal tensor even in inference mode.

    The allocator is asked for ``nbytes`` and, only if what came is misaligned, once more with
    enough on top to align it. What it raises passes through.

    Raises:
        CommArgumentError: The allocator returned something else than it was asked for.
    """
    with torch.inference_mode(False):
        arena = _aligned(_block(nbytes, device, allocator), nbytes)
        if arena.numel() < nbytes:
            del arena
            arena = _aligned(_block(nbytes + ALIGNMENT - 1, device, allocator), nbytes)
    return arena


def _block(nbytes: int, device: torch.device, allocator: Allocator) -> torch.Tensor:
    """Ask the allocator once and check its answer."""
    block = allocator(nbytes, device)
    fault = _fault(block, nbytes, device)
    if fault:
        need = f"a 1-D contiguous uint8 tensor of {nbytes} bytes on {device}"
        remedy = "Return the raw bytes of one allocation"
        raise CommArgumentError(refusal("Workspace", "allocator", fault, need, remedy=remedy))
    return block


def _fault(block: object, nbytes: int, device: torch.device) -> str:
    """Return what is wrong with an allocator's answer, or nothing."""
    if not isinstance(block, torch.Tensor):
        return f"a {type(block).__name__}"
    if block.dtype != torch.uint8 or block.dim() != 1 or not block.is_contiguous():
        return f"{block.dtype} of shape {tuple(block.shape)} and stride {block.stride()}"
    if block.numel() < nbytes or block.device != device:
        return f"{block.numel()} bytes on {block.device}"
    base = block.data_ptr() - block.storage_offset()
    return f"a storage at address {base:#x}, no multiple of {_WIDEST}" if base % _WIDEST else ""


def _aligned(block: torch.Tensor, nbytes: int) -> torch.Tensor:
    """Cut ``nbytes`` at the first aligned address; fewer when the block ends before."""
    start = -block.data_ptr() % ALIGNMENT
    return block[start : start + nbytes]
