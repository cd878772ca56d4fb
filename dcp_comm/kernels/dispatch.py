"""The one place that chooses how the merge's arithmetic runs."""

import torch

from dcp_comm.kernels.primitives import Primitives
from dcp_comm.kernels.torch_primitives import TorchPrimitives


def primitives_for(device: torch.device, k: int, size: int) -> Primitives:  # noqa: ARG001
    """Return what merges K winners of ``size`` ranks on the device."""
    return TorchPrimitives()
