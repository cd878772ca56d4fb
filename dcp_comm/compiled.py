"""The collectives and the merge as custom ops, so that ``torch.compile`` keeps them in its graph.

1. Outside: ``group = register(comm)``, ``merge = register_merge(top_k_merge, workspace=...)``. What
   comes back are names: strings, which a graph can hold. Prepare the merge before.
2. Inside a compiled region, ``fullgraph=True`` or not: the functions of this module, with a name.
3. ``comm.close()`` takes its names away; a later call by one raises CommClosed. A communicator that
   is registered then gets the free name, and serves regions that were compiled before.

Each op writes into buffers that the caller made, and the graph knows it. The compiler may drop a
call whose output nothing reads, and may order independent calls anew; so compile the same region
on every rank. Inductor, as of torch 2.13, loses a ``clone()`` of a buffer that a later custom op,
whoever's, overwrites in the same region: give each call a result of its own there. Importing this
module registers the ops; nothing else of the package imports it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm import names
from dcp_comm.communicator import Communicator
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace, WorkspaceSlot

NAMESPACE = "dcp_comm"

_REST = (
    "Tensor(a!) out_ids, Tensor(b!) out_counts, Tensor(c!) out_certified, Tensor? block_table,"
    " Tensor? request_ids, str merge"
)
SCHEMAS = {
    "all_gather_into": "Tensor(a!) output, Tensor input, str group",
    "all_to_all_into": "Tensor(a!) output, Tensor input, str group",
    "reduce_scatter_into": "Tensor(a!) output, Tensor input, str op, str group",
    "all_reduce": "Tensor(a!) tensor, str op, str group",
    "broadcast": "Tensor(a!) tensor, int root, str group",
    "topk_merge": f"Tensor scores, Tensor ids, Tensor? lengths, {_REST}",
    "topk_merge_logits": (
        f"Tensor logits, Tensor ids, Tensor? row_starts, Tensor? lengths, {_REST}"
    ),
}
"""What each op takes, and which of it is written; none returns anything."""


@dataclass(frozen=True, eq=False)
class NamedMerge:
    """A merge and where it works.

    Attributes:
        merge: What selects.
        scratch: As for `TopKMerge.begin`.
        workspace: As for `TopKMerge.begin`.
    """

    merge: TopKMerge
    scratch: Sequence[Tensor] | None
    workspace: Workspace | WorkspaceSlot | None


def register(comm: Communicator) -> str:
    """Return the name of a communicator for this module's functions, until it is closed."""
    return names.give(comm, comm.name, comm)


def register_merge(
    merge: TopKMerge,
    *,
    scratch: Sequence[Tensor] | None = None,
    workspace: Workspace | WorkspaceSlot | None = None,
) -> str:
    """Return the name of a merge for this module's functions, until its communicator is closed.

    Args:
        merge: Kept alive as long as its name. Prepare it before: inside a region is too late to
            find out that the ranks differ.
        scratch: As for `TopKMerge.begin`, for every call; from a locked workspace, say.
        workspace: Where to take scratch from instead, if nothing else there must stay alive.
    """
    named = NamedMerge(merge, scratch, workspace)
    return names.give(named, f"{merge.comm.name}/top-k", merge.comm)


def all_gather_into(output: Tensor, input: Tensor, group: str) -> None:
    """Call `Communicator.all_gather_into` of the group of that name."""
    torch.ops.dcp_comm.all_gather_into(output, input, group)


def all_to_all_into(output: Tensor, input: Tensor, group: str) -> None:
    """Call `Communicator.all_to_all_into` of the group of that name."""
    torch.ops.dcp_comm.all_to_all_into(output, input, group)


def reduce_scatter_into(output: Tensor, input: Tensor, group: str, op: str = "sum") -> None:
    """Call `Communicator.reduce_scatter_into` of the group of that name."""
    torch.ops.dcp_comm.reduce_scatter_into(output, input, op, group)


def all_reduce(tensor: Tensor, group: str, op: str = "sum") -> None:
    """Call `Communicator.all_reduce` of the group of that name."""
    torch.ops.dcp_comm.all_reduce(tensor, op, group)


def broadcast(tensor: Tensor, root: int, group: str) -> None:
    """Call `Communicator.broadcast` of the group of that name."""
    torch.ops.dcp_comm.broadcast(tensor, root, group)


def topk_merge(
    scores: Tensor,
    ids: Tensor,
    out: MergeResult,
    merge: str,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    request_ids: Tensor | None = None,
) -> MergeResult:
    """Call the merge of that name on rows that are all at hand; returns ``out``.

    Arguments and errors are those of `TopKMerge`; results are always the caller's.
    """
    result = out.ids, out.counts, out.certified
    torch.ops.dcp_comm.topk_merge(scores, ids, lengths, *result, block_table, request_ids, merge)
    return out


def topk_merge_logits(
    logits: Tensor,
    ids: Tensor,
    out: MergeResult,
    merge: str,
    row_starts: Tensor | None = None,
    lengths: Tensor | None = None,
    block_table: Tensor | None = None,
    request_ids: Tensor | None = None,
) -> MergeResult:
    """Call the merge of that name on rows whose scores are still in the logits; returns ``out``.

    Arguments and errors are those of `MergeJob.pack_logits` and `TopKMerge.begin`.
    """
    result = out.ids, out.counts, out.certified
    torch.ops.dcp_comm.topk_merge_logits(
        logits, ids, row_starts, lengths, *result, block_table, request_ids, merge
    )
    return out


def _collective(op: str) -> Callable[..., None]:
    """Return the call of that name on the group whose name comes last."""

    def call(*arguments: object) -> None:
        *rest, group = arguments
        comm = names.find(f"{NAMESPACE}::{op}", str(group), Communicator)
        getattr(comm, op)(*rest)

    return call


def _topk_merge(
    scores: Tensor,
    ids: Tensor,
    lengths: Tensor | None,
    out_ids: Tensor,
    out_counts: Tensor,
    out_certified: Tensor,
    block_table: Tensor | None,
    request_ids: Tensor | None,
    merge: str,
) -> None:
    named = names.find(f"{NAMESPACE}::topk_merge", merge, NamedMerge)
    out = MergeResult(out_ids, out_counts, out_certified)
    place = named.scratch, named.workspace
    named.merge(scores, ids, lengths, *place, out, block_table, request_ids)


def _topk_merge_logits(
    logits: Tensor,
    ids: Tensor,
    row_starts: Tensor | None,
    lengths: Tensor | None,
    out_ids: Tensor,
    out_counts: Tensor,
    out_certified: Tensor,
    block_table: Tensor | None,
    request_ids: Tensor | None,
    merge: str,
) -> None:
    named = names.find(f"{NAMESPACE}::topk_merge_logits", merge, NamedMerge)
    out = MergeResult(out_ids, out_counts, out_certified)
    place = named.scratch, named.workspace
    job = named.merge.begin(out.rows, *place, out, None, block_table, request_ids)
    job.pack_logits(logits, ids, row_starts, lengths)
    job.finish()


_MERGES: dict[str, Callable[..., None]] = {
    "topk_merge": _topk_merge,
    "topk_merge_logits": _topk_merge_logits,
}


def _returns_nothing(*arguments: object) -> None:
    """What every op does to tensors without memory: it writes into some, and makes none."""


_library = torch.library.Library(NAMESPACE, "DEF")
for _name, _arguments in SCHEMAS.items():
    # Buffers must be contiguous: the compiler shall not lay them out anew.
    _tags = (torch.Tag.needs_exact_strides, torch.Tag.pt2_compliant_tag)
    _library.define(f"{_name}({_arguments}) -> ()", tags=_tags)
    _library.impl(_name, _MERGES.get(_name) or _collective(_name), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _returns_nothing, lib=_library)
