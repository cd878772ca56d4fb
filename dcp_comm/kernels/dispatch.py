"""The one place that chooses how the merge's arithmetic runs."""

import torch

from dcp_comm.errors import BackendUnavailable, refusal
from dcp_comm.kernels.cuda import compiler
from dcp_comm.kernels.cuda.launcher import cuda_launcher
from dcp_comm.kernels.cuda.primitives import MAX_K, MAX_SIZE, MIN_K, CudaPrimitives, fits
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.kernels.primitives import Primitives
from dcp_comm.kernels.torch_primitives import TorchPrimitives
from dcp_comm.settings import Settings


def primitives_for(device: torch.device, k: int, size: int, block: int | None = None) -> Primitives:
    """Return what merges K winners of ``size`` ranks on the device; `Primitives.why` tells why.

    ``block`` is the lemma's, if it was asked for: many splitters may not fit into shared memory.

    Nothing is compiled before `Primitives.prepare`. Every choice gives the same bits, so ranks may
    differ in it.

    Raises:
        BackendUnavailable: ``DCP_COMM_KERNELS=cuda`` asks for kernels that cannot be had.
    """
    if device.type != "cuda":
        return TorchPrimitives("the only way on this device")
    asked = Settings.from_environment().kernels
    if asked == "torch":
        return TorchPrimitives("DCP_COMM_KERNELS asks for it")
    why_not = _why_not(k, size, block)
    if why_not and asked == "cuda":
        remedy = "Unset DCP_COMM_KERNELS for torch operations"
        text = refusal("TopKMerge", "DCP_COMM_KERNELS", "'cuda'", why_not, remedy=remedy)
        raise BackendUnavailable(text)
    if why_not:
        return TorchPrimitives(f"CUDA kernels need {why_not}")
    return CudaPrimitives(cuda_launcher(device.index or 0), k, size)


def _why_not(k: int, size: int, block: int | None) -> str:
    """Return what kernels need that is not so; empty if they can be had."""
    if not MIN_K <= k <= MAX_K:
        return f"k of {MIN_K} to {MAX_K}, not {k}"
    if size > MAX_SIZE:
        return f"at most {MAX_SIZE} ranks, not {size}"
    if not fits(splitter_shape(k, size, block), size):
        return f"options.block large enough for the splitters of a row to fit, not {block}"
    return compiler.missing()
