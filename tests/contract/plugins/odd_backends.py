"""Backends for tests of the suite itself; found by the dist-info beside this file."""

import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from dcp_comm.backends.torch_distributed import TorchBackend
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline


class OldTorchBackend(TorchBackend):
    """Gloo through the collectives' names of torch 2.10 to 2.12, the only ones there."""

    name = "old-torch"

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, owned: bool) -> None:
        for new in ("all_gather_single", "reduce_scatter_single"):
            if hasattr(dist, new):
                delattr(dist, new)
        super().__init__(group, device, owned=owned)


class DyingBackend(TorchBackend):
    """Its rank 1 ends at the first all-to-all, saying why."""

    name = "dying"

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        if self.rank == 1 and calls[0].op == "all_to_all_into":
            os.write(2, b"cannot go on\n")
            os._exit(7)
        super().issue(calls, stream, deadline)


class HangingBackend(TorchBackend):
    """Its rank 1 never returns from an all-to-all."""

    name = "hanging"

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        if self.rank == 1 and calls[0].op == "all_to_all_into":
            time.sleep(3600)
        super().issue(calls, stream, deadline)


class AbsentBackend(TorchBackend):
    """Works on no machine."""

    name = "absent"

    @classmethod
    def unavailable(cls) -> str:
        return "it needs a machine that nobody has"
