"""What a communicator costs on its GPU, outside torch's allocator, measured stage by stage."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

MEASURED_BYTES = 868 << 20
MEASURED = (
    "an NCCL communicator of our own takes GPU memory outside torch's allocator: 868 MiB, or "
    "1.28 GiB as the first of its process (2 H200 over NVLink, NCCL 2.28.9, connected and prepared)"
)
"""By ``dcp-comm bench collectives``; adopting an engine's communicator costs none."""


class Footprint:
    """Bytes of GPU memory that were gone after each stage of a communicator's life.

    Measured device-wide, less what torch's allocator holds: what other processes take or free
    meanwhile is counted too. On CPU every stage costs 0.

    Args:
        device: Where to look.

    Attributes:
        by_stage: Bytes by ``connect``, ``prepare``; a stage that runs again adds to its own.
    """

    def __init__(self, device: torch.device) -> None:
        self.by_stage: dict[str, int] = {}
        self._device = device

    @property
    def nbytes(self) -> int:
        """Bytes of all stages."""
        return sum(self.by_stage.values())

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure what runs inside."""
        before = self._in_use()
        yield
        self.by_stage[name] = self.by_stage.get(name, 0) + self._in_use() - before

    def _in_use(self) -> int:
        if self._device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free - torch.cuda.memory_reserved(self._device)
