"""Regions to compile: what stands in them is the custom ops and a little arithmetic around."""

from collections.abc import Callable

import torch
from torch import Tensor

import dcp_comm as dc
from dcp_comm import compiled
from dcp_comm.communicator import Communicator

K, ROWS = 4, 5
Region = Callable[..., tuple[Tensor, ...]]


def collectives(comm: Communicator, group: str) -> Region:
    """All five, each fed by what is computed in the region and read there again."""
    size = comm.size

    def region(x: Tensor) -> tuple[Tensor, ...]:
        gathered = x.new_empty(size, *x.shape)
        compiled.all_gather_into(gathered, x * 2, group)
        swapped = torch.empty_like(gathered)
        compiled.all_to_all_into(swapped, gathered + x, group)
        reduced = torch.empty_like(x)
        compiled.reduce_scatter_into(reduced, swapped * 3, group, "sum")
        total = reduced + 1
        compiled.all_reduce(total, group, "max")
        told = total.relu()
        compiled.broadcast(told, size - 1, group)
        return gathered, swapped, reduced, total, told

    return region


def plain_collectives(comm: Communicator, x: Tensor) -> tuple[Tensor, ...]:
    """The same by the communicator itself."""
    gathered = x.new_empty(comm.size, *x.shape)
    comm.all_gather_into(gathered, x * 2)
    swapped = torch.empty_like(gathered)
    comm.all_to_all_into(swapped, gathered + x)
    reduced = torch.empty_like(x)
    comm.reduce_scatter_into(reduced, swapped * 3, "sum")
    total = reduced + 1
    comm.all_reduce(total, "max")
    told = total.relu()
    comm.broadcast(told, comm.size - 1)
    return gathered, swapped, reduced, total, told


def a_merge(comm: Communicator) -> tuple[str, dc.TopKMerge]:
    """A merge in a locked workspace, and its name."""
    merge, workspace = dc.TopKMerge(comm, K, ROWS), dc.Workspace(comm.device)
    workspace.reserve(*merge.specs(), owner="merge")
    workspace.lock()
    merge.prepare()
    return compiled.register_merge(merge, workspace=workspace), merge


def merging(name: str) -> Region:
    """Scores are computed in the region, ids are used there; the result is the caller's buffer."""

    def region(logits: Tensor, ids: Tensor, out: dc.MergeResult) -> tuple[Tensor, ...]:
        scores = (logits * -2).gather(1, ids.long())
        compiled.topk_merge(scores, ids, out, name)
        first = out.ids * 1, out.counts + 1
        compiled.topk_merge_logits(logits + 1, ids, out, name)
        return *first, out.ids * 1, out.counts * 1, out.certified.logical_not()

    return region


def plain_merging(
    merge: dc.TopKMerge, logits: Tensor, ids: Tensor, out: dc.MergeResult
) -> tuple[Tensor, ...]:
    """The same by the merge itself."""
    merge((logits * -2).gather(1, ids.long()), ids, out=out)
    first = out.ids * 1, out.counts + 1
    job = merge.begin(ROWS, out=out)
    job.pack_logits(logits + 1, ids)
    job.finish()
    return *first, out.ids * 1, out.counts * 1, out.certified.logical_not()


def merge_inputs(rank: int, device: str = "cpu") -> tuple[Tensor, Tensor, dc.MergeResult]:
    """Logits of 9 local tokens, K of their positions in any order, a place for the result."""
    generator = torch.Generator().manual_seed(rank)
    logits = torch.randn(ROWS, 9, generator=generator)
    ids = torch.stack([torch.randperm(9, generator=generator)[:K] for _ in range(ROWS)]).int()
    return logits.to(device), ids.to(device), dc.MergeResult.allocate(ROWS, K, device)
