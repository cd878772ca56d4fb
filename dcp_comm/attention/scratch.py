"""Where a stage's scratch comes from: the caller, a workspace, or the allocator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.specs import BufferSpec
from dcp_comm.topk.arguments import Refuse
from dcp_comm.workspace import Workspace, WorkspaceSlot


def views_of(
    refuse: Refuse,
    specs: Sequence[BufferSpec],
    device: torch.device,
    scratch: Sequence[Tensor] | None,
    workspace: Workspace | WorkspaceSlot | None,
) -> Sequence[Tensor]:
    """Return views of ``specs`` that were given, or take or allocate them.

    Raises:
        CommArgumentError: Both were given, or the views do not fit.
        WorkspaceExhausted: The workspace is locked and too small.
    """
    if scratch is not None and workspace is not None:
        raise refuse("workspace", "scratch as well", "one of them")
    if workspace is not None:
        scratch = workspace.take(*specs)
    if scratch is None:
        return [torch.empty(each.shape, dtype=each.dtype, device=device) for each in specs]
    refuse.unless_scratch(scratch, specs)
    return scratch
