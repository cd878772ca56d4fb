"""The one place that chooses how the arithmetic runs."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from dcp_comm.errors import BackendUnavailable, refusal
from dcp_comm.kernels import torch_topk
from dcp_comm.kernels.cuda import compiler, local
from dcp_comm.kernels.cuda.launcher import cuda_launcher
from dcp_comm.kernels.cuda.primitives import MAX_K, MAX_SIZE, MIN_K, CudaPrimitives
from dcp_comm.kernels.cuda.unavailable import KernelsUnavailable
from dcp_comm.kernels.lemma import best_block, splitter_shape
from dcp_comm.kernels.primitives import Primitives
from dcp_comm.kernels.torch_primitives import TorchPrimitives
from dcp_comm.settings import Settings

LocalTopK = Callable[
    [Tensor, Tensor | None, Tensor | None, bool, tuple[Tensor, Tensor]],
    None,
]
"""`dcp_comm.local_topk` into given tensors, for checked arguments."""


def primitives_for(device: torch.device, k: int, size: int, block: int | None = None) -> Primitives:
    """Return what merges K winners of ``size`` ranks on the device; `Primitives.why` tells why.

    ``block`` is the lemma's, if it was asked for: many splitters may not fit into shared memory.

    Nothing is compiled before `Primitives.prepare`. Every choice gives the same bits, so ranks may
    differ in it.

    Raises:
        BackendUnavailable: ``DCP_COMM_KERNELS=cuda`` asks for kernels that cannot be had.
    """
    why_torch = _why_torch(
        device,
        "TopKMerge",
        lambda: merge_limits(k, size),
        lambda: _room_needed(_kernels(device, k, size), k, size, block),
    )
    if why_torch:
        return TorchPrimitives(why_torch)
    return _kernels(device, k, size)


@cache
def local_topk_for(device: torch.device, k: int) -> LocalTopK:
    """Return what finds the K best columns of rows of logits on the device; all give the same bits.

    It is chosen once: to read the environment takes longer than a kernel.

    Raises:
        BackendUnavailable: ``DCP_COMM_KERNELS=cuda`` asks for kernels that cannot be had.
    """
    limits = "" if k <= local.MAX_K else f"k up to {local.MAX_K}, not {k}"
    if _why_torch(device, "local_topk", lambda: limits):
        return torch_topk.local_topk
    return local.local_topk


def _why_torch(
    device: torch.device,
    operation: str,
    limits: Callable[[], str],
    of_device: Callable[[], str] = str,
) -> str:
    """Return why torch operations do it; empty if CUDA kernels do, which need both limits empty.

    ``of_device`` is asked where there are kernels.
    """
    if device.type != "cuda":
        return "the only way on this device"
    asked = Settings.from_environment().kernels
    if asked == "torch":
        return "DCP_COMM_KERNELS asks for it"
    why_not = limits() or _missing(device) or of_device()
    if why_not and asked == "cuda":
        remedy = "Unset DCP_COMM_KERNELS for torch operations"
        text = refusal(operation, "DCP_COMM_KERNELS", "'cuda'", why_not, remedy=remedy)
        raise BackendUnavailable(text)
    return why_not and f"CUDA kernels need {why_not}"


def _missing(device: torch.device) -> str:
    """Return what kernels need that the machine has not; empty if it has all."""
    try:
        compiler.require()
        cuda_launcher(device.index or 0)
    except KernelsUnavailable as error:
        return error.need
    return ""


def merge_limits(k: int, size: int) -> str:
    """Return what the merge's kernels need that is not so; empty if it is."""
    if not MIN_K <= k <= MAX_K:
        return f"k of {MIN_K} to {MAX_K}, not {k}"
    if size > MAX_SIZE:
        return f"at most {MAX_SIZE} ranks, not {size}"
    return ""


def _kernels(device: torch.device, k: int, size: int) -> CudaPrimitives:
    return CudaPrimitives(cuda_launcher(device.index or 0), k, size)


def _room_needed(kernels: CudaPrimitives, k: int, size: int, block: int | None) -> str:
    """Return what needs more shared memory than a block may have; empty if nothing does."""
    if kernels.fits(splitter_shape(k, size, block)):
        return ""
    return f"options.block closer to {best_block(k, size)}, not {block}"
