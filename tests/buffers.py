"""Buffers and allocators for the tests of specs, arenas and workspaces."""

import torch

from dcp_comm.specs import BufferSpec
from dcp_comm.workspace import Workspace


def raw(nbytes: int, name: str = "raw") -> BufferSpec:
    """A buffer of so many bytes."""
    return BufferSpec(name, (nbytes,), torch.uint8)


class Allocator:
    """Counts what it is asked for and raises at the calls it is told to."""

    def __init__(self, *failing: int) -> None:
        self.failing = failing
        self.asked: list[int] = []

    def __call__(self, nbytes: int, device: torch.device) -> torch.Tensor:
        self.asked.append(nbytes)
        if len(self.asked) in self.failing:
            raise MemoryError(f"call {len(self.asked)}")
        return aligned(nbytes)


def aligned(nbytes: int, shift: int = 0) -> torch.Tensor:
    """Bytes that start ``shift`` after a 256-byte boundary."""
    block = torch.empty(nbytes + 511, dtype=torch.uint8)
    start = -block.data_ptr() % 256 + shift
    return block[start : start + nbytes]


def state(workspace: Workspace) -> tuple[object, ...]:
    """Everything a failed call must leave alone."""
    report = workspace.report()
    addresses = [repr(workspace.slot(index)) for index in range(report.slots)]
    return report.locked, report.nbytes, dict(report.owners), addresses
