"""What a legal call of an indexer is; every rule refuses before anything is sent or written."""

from collections.abc import Sequence

import torch

from dcp_comm.indexer.batch import IndexerBatch
from dcp_comm.indexer.limits import IndexerLimits
from dcp_comm.indexer.pages import check_cache
from dcp_comm.indexer.path import Step
from dcp_comm.sharding import Shard
from dcp_comm.topk.arguments import INTEGERS, Refuse
from dcp_comm.workspace import Workspace, WorkspaceSlot


def check_workspace(refuse: Refuse, workspace: object) -> None:
    """Refuse what nothing can be taken from."""
    if not isinstance(workspace, Workspace | WorkspaceSlot):
        got, need = type(workspace).__name__, "a Workspace or one of its slots"
        raise refuse("workspace", got, need, "Reserve in it with SparseIndexer.reserve")


def check_batch(
    refuse: Refuse, batch: object, limits: IndexerLimits, tables: Sequence[torch.dtype] = INTEGERS
) -> None:
    """Refuse what is no batch, more or longer requests than the limits say, and other tables."""
    if not isinstance(batch, IndexerBatch):
        raise refuse("batch", type(batch).__name__, "an IndexerBatch")
    requests, longest = len(batch.lengths), max(batch.lengths, default=0)
    unless_at_most(refuse, "batch.lengths", requests, "requests", limits.requests)
    unless_at_most(refuse, "batch.lengths", longest, "max_model_len", limits.max_model_len)
    refuse.unless_tensor("batch.page_table", batch.page_table, (requests, None), tables)


def unless_at_most(refuse: Refuse, argument: str, got: int, limit: str, most: int) -> None:
    """Refuse what exceeds a limit."""
    if got > most:
        remedy = "Cut the step, or build the indexer with the limits of the engine"
        raise refuse(argument, got, f"at most {limit} = {most}", remedy)


def check_step(refuse: Refuse, cache: str, step: Step, limits: IndexerLimits, shard: Shard) -> None:
    """Refuse tensors that do not fit the batch, which was checked, or the limits.

    Args:
        refuse: Words the refusals.
        cache: What the call names its cache.
        step: The call's tensors.
        limits: What the indexer was built for.
        shard: Which tokens are this rank's.
    """
    rows, floats = step.batch.rows, (torch.float32,)
    refuse.unless_tensor("q", step.q, (rows, limits.heads, limits.head_dim), floats)
    refuse.unless_tensor("weights", step.weights, (rows, limits.heads), floats)
    check_cache(refuse, cache, step.cache, limits.page_size, limits.head_dim)
    _check_pages(refuse, cache, step, shard)


def _check_pages(refuse: Refuse, cache: str, step: Step, shard: Shard) -> None:
    """Refuse missing pages, and on the CPU, where looking is free, pages that do not exist."""
    table, (pages, page_size, _) = step.batch.page_table, step.cache.shape
    used = [-(-shard.local_length(length) // page_size) for length in step.batch.contexts]
    most = max(used, default=0)
    if most > table.shape[1]:
        raise refuse("batch.page_table", f"{table.shape[1]} pages a request", f"at least {most}")
    if most > pages:
        raise refuse(cache, f"{pages} pages", f"at least the {most} of the longest request")
    if table.device.type == "cpu":
        for row, count in zip(table, used, strict=True):
            mine = row[:count]
            wrong = mine[(mine < 0) | (mine >= pages)].tolist()
            if wrong:
                need = f"pages of 0 .. {pages - 1} up to the last local token"
                raise refuse("batch.page_table", f"pages {wrong[:4]}", need)
