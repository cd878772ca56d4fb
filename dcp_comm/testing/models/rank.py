"""One rank's part of a model: pages, its share of a step, and what its layers have in common."""

from typing import Any

import torch
from torch import Tensor

from dcp_comm.attention import LseMerge
from dcp_comm.communicator import Communicator
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer
from dcp_comm.kernels.torch_ops import to_slots
from dcp_comm.sharding import Shard
from dcp_comm.workspace import Workspace


class Rank:
    """What all layers of a rank share: indexer, LSE merge, scratch, block table, the step's batch.

    Requests are equally long, so that a step's tokens are (requests, n). Each request has the same
    number of pages, which lie in the cache in an order of this rank's own.

    Args:
        comm: The ranks among which the tokens are dealt.
        config: The model's.
        requests: Requests served together.
        max_tokens: Most tokens of each.
        interleave: Consecutive tokens dealt to a rank at a time.
        page_size: Tokens a page.
        way: Of the LSE merge.

    Attributes:
        batch: The rows of the step under way.
        new: Slots of the step's tokens that this rank owns, int64 (n,).
        own: Which of the step's (requests * n) tokens those are, bool.
    """

    batch: IndexerBatch
    new: Tensor
    own: Tensor

    def __init__(
        self,
        comm: Communicator,
        config: Any,
        requests: int,
        max_tokens: int,
        interleave: int,
        page_size: int,
        way: str,
    ) -> None:
        self.comm, self.page_size = comm, page_size
        self.shard = Shard(comm.rank, comm.size, interleave)
        limits = IndexerLimits(
            k=config.index_topk,
            heads=config.index_n_heads,
            head_dim=config.index_head_dim,
            query_rows=requests * max_tokens,
            requests=requests,
            max_model_len=max_tokens,
            interleave=interleave,
            page_size=page_size,
        )
        self.indexer = SparseIndexer(comm, limits, scale=config.index_head_dim**-0.5)
        heads, dim = config.num_attention_heads, config.kv_lora_rank
        self.merge = LseMerge(comm, limits.query_rows, heads, dim, way=way)
        self.workspace = Workspace(comm.device)
        self.indexer.reserve(self.workspace)
        self.workspace.reserve(*self.merge.specs(), owner="LSE merge")
        self.workspace.lock()
        pages = -(-limits.local_tokens(comm.size) // page_size)
        order = torch.randperm(requests * pages, generator=torch.Generator().manual_seed(comm.rank))
        self.table = order.int().view(requests, pages).to(comm.device)

    def cache(self, width: int) -> Tensor:
        """Return pages for one layer, (pages, page_size, width), NaN until written."""
        shape = self.table.numel(), self.page_size, width
        return torch.full(shape, torch.nan, device=self.comm.device)

    def begin(self, past: int, tokens: int) -> None:
        """Start a step of so many tokens of each request, behind so many."""
        requests = len(self.table)
        lengths, counts = [past + tokens] * requests, [tokens] * requests
        self.batch = IndexerBatch(lengths, counts, self.table)
        positions = (self.batch.row_lengths - 1).int()
        self.own = self.shard.owner(positions) == self.shard.rank
        local = self.shard.local_index(positions)[self.own, None]
        to_slots(local, self.table, self.batch.row_requests[self.own], self.page_size)
        self.new = local[:, 0].long()

    def keep(self, cache: Tensor, rows: Tensor) -> None:
        """Write what this rank owns of the step's rows (requests * n, width) into its pages."""
        cache.flatten(0, 1)[self.new] = rows[self.own]

    def select(self, q: Tensor, weights: Tensor, cache: Tensor) -> Tensor:
        """Return this rank's winners as slots, int32 (T, K): the indexer, then the block table."""
        decodes = max(self.batch.query_lengths) == 1
        select = self.indexer.decode if decodes else self.indexer.prefill
        return self.slots(select(q, weights, cache, self.batch, workspace=self.workspace).ids)

    def everything(self) -> Tensor:
        """Return slots of all tokens here that a row sees, int32 (T, any), -1 behind them."""
        seen = self.batch.local_lengths(self.shard)[:, None]
        local = torch.arange(self.table.shape[1] * self.page_size, device=seen.device)
        return self.slots(local.where(local < seen, -1).int())

    def slots(self, local: Tensor) -> Tensor:
        """Replace local positions (T, any) of the step's rows by slots, in place."""
        to_slots(local, self.table, self.batch.row_requests, self.page_size)
        return local

    def combine(self, partial: Tensor, lse: Tensor) -> Tensor:
        """Return this rank's heads of the attention over all winners, (T, H/p, V)."""
        return self.merge(partial, lse, workspace=self.workspace).out

    def all_heads(self, mine: Tensor) -> Tensor:
        """Bring the ranks' heads together, (T, H, V); tensor parallelism would not need to."""
        every = mine.new_empty(self.comm.size, *mine.shape)
        self.comm.all_gather_into(every, mine.contiguous())
        return every.movedim(0, 1).flatten(1, 2)
