"""Memory: both merges under an allocator that gives out no more than ours reserves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.arena import torch_allocator
from dcp_comm.cli.demo.published import published_merge
from dcp_comm.cli.demo.stages import Candidates, Setup


class OverBudget(MemoryError):
    """An allocation that the cap does not allow."""


class Budget:
    """An allocator with a cap; what it gave counts for good.

    Args:
        cap: Bytes in all; None for no cap.

    Attributes:
        given: Bytes so far.
    """

    def __init__(self, cap: int | None = None) -> None:
        self.cap, self.given = cap, 0

    def __call__(self, nbytes: int, device: torch.device) -> Tensor:
        """Return uint8 (nbytes,), as a workspace's allocator does.

        Raises:
            OverBudget: It would pass the cap.
        """
        if self.cap is not None and self.given + nbytes > self.cap:
            raise OverBudget(f"{nbytes:,} bytes wanted, {self.cap - self.given:,} left")
        self.given += nbytes
        return torch_allocator(nbytes, device)

    def floats(self, what: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return float32 of this shape.

        Raises:
            OverBudget: It would pass the cap; says what it was for.
        """
        nbytes = 4 * torch.Size(shape).numel()
        try:
            return self(nbytes, device).view(torch.float32).view(shape)
        except OverBudget as error:
            raise OverBudget(f"fails at {what}: {error}") from None


@dataclass(frozen=True)
class Memory:
    """What the exchange of both merges took, in bytes a rank.

    Attributes:
        reserved: What the workspace holds before the first row, and the cap of both.
        used: What ours took from the allocator by its end.
        published: What the published merge takes without a cap.
        failure: How it ended under the cap; empty if it did not fail.
        same: Whether it selects the same as ours where it has the memory.
    """

    reserved: int
    used: int
    published: int
    failure: str
    same: bool


def compare(setup: Setup, budget: Budget, candidates: Sequence[Candidates], ours: Tensor) -> Memory:
    """Run the published merge under ours' cap, then without; ours has run on ``budget``."""
    capped, free = Budget(setup.workspace.nbytes), Budget()
    failure = _failure(lambda: published_merge(setup, candidates, capped.floats))
    same = torch.equal(published_merge(setup, candidates, free.floats), ours)
    return Memory(setup.workspace.nbytes, budget.given, free.given, failure, same)


def _failure(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OverBudget as error:
        return str(error)
    return ""
