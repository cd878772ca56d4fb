"""A whole sharded layer, index scores to merged heads, beside dense attention in float32.

Index scores are whole numbers, so that the selection is exact; the reference scores, sorts and
attends to every token unsharded, on the communicator's device.
"""

import torch
from torch import Tensor

from dcp_comm.attention import LseMerge, sparse_attention
from dcp_comm.communicator import Communicator
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer
from dcp_comm.workspace import Workspace
from tests import oracle

TOKENS, ROWS, K, HEADS, LATENT, ROPE, INDEX_HEADS, INDEX_DIM = 300, 40, 24, 8, 32, 8, 4, 16
SCALE, PAGE, INTERLEAVE = 0.2, 8, 2


class Layer:
    """Inputs of one request's last rows, the same on every rank."""

    def __init__(self, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)

        def whole(*shape: int) -> Tensor:
            return torch.randint(-3, 4, shape, generator=generator).float().to(device)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator).to(device)

        self.index_q, self.index_keys = (
            whole(ROWS, INDEX_HEADS, INDEX_DIM),
            whole(TOKENS, INDEX_DIM),
        )
        self.weights = whole(ROWS, INDEX_HEADS)
        self.q, self.latents = normal(ROWS, HEADS, LATENT + ROPE), normal(TOKENS, LATENT + ROPE)

    def dense(self) -> Tensor:
        """All heads' attention to the K best of the tokens that each row sees, (T, H, latent)."""
        products = torch.einsum("thd,sd->ths", self.index_q, self.index_keys).relu()
        scores = torch.einsum("ths,th->ts", products, self.weights)
        seen = torch.ones(ROWS, TOKENS, dtype=torch.bool, device=scores.device)
        seen = seen.tril(TOKENS - ROWS)
        scores = scores.masked_fill(~seen, -torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True).indices[:, :K]
        chosen = torch.zeros_like(seen).scatter_(1, best, True)
        logits = SCALE * torch.einsum("thd,sd->ths", self.q, self.latents)
        weights = logits.masked_fill(~chosen[:, None], -torch.inf).softmax(2)
        return torch.einsum("ths,sv->thv", weights, self.latents[:, :LATENT])


def worst(comm: Communicator, way: str) -> float:
    """The largest difference of this rank's heads from dense attention; collective."""
    layer = Layer(comm.device)
    limits = IndexerLimits(K, INDEX_HEADS, INDEX_DIM, ROWS, 1, TOKENS, 1, INTERLEAVE, PAGE)
    indexer, merge = SparseIndexer(comm, limits), LseMerge(comm, ROWS, HEADS, LATENT, way=way)
    workspace = Workspace(comm.device)
    indexer.reserve(workspace)
    workspace.reserve(*merge.specs(), owner="LSE merge")
    workspace.lock()
    hand = list(oracle.deal(TOKENS, comm.size, INTERLEAVE)[comm.rank])
    pages = -(-limits.local_tokens(comm.size) // PAGE)
    cache = torch.full((pages, PAGE, INDEX_DIM), torch.nan, device=comm.device)
    cache.flatten(0, 1)[: len(hand)] = layer.index_keys[hand]
    table = torch.arange(pages, device=comm.device)[None]
    batch = IndexerBatch([TOKENS], [ROWS], table)
    found = indexer.prefill(layer.index_q, layer.weights, cache, batch, workspace=workspace)
    keys = layer.latents[hand][:, None]
    mine = sparse_attention(layer.q, keys, LATENT, found.ids, found.counts, scale=SCALE)
    out, _ = merge(*mine, workspace=workspace)
    heads = slice(comm.rank * HEADS // comm.size, (comm.rank + 1) * HEADS // comm.size)
    return float((out - layer.dense()[:, heads]).abs().max())
