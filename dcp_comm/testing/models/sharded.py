"""The same model with sharded attention: ``forward`` of its attention modules is replaced.

All else stays theirs: projections, norms, rotary embeddings, experts, the layers' order, and how a
selection is handed from one layer to those that share it.
"""

import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dcp_comm.attention import sparse_attention
from dcp_comm.communicator import Communicator
from dcp_comm.testing.models.rank import Rank
from dcp_comm.testing.models.small import Model

Angles = tuple[Tensor, Tensor]


class ShardedModel:
    """A copy of a model whose layers select and attend over the ranks, with its sharded cache.

    A rank keeps the latents and index keys of its own tokens and nothing else; transformers' cache
    is not used. The copy runs on the communicator's device, the rest of each layer on every rank
    alike.

    Args:
        comm: The ranks; their number divides the heads.
        model: Of `dcp_comm.testing.models.small_model`; left as it is.
        max_tokens: Most tokens of a request, prompt and answer together.
        requests: Requests served together, all equally long.
        interleave: Consecutive tokens dealt to a rank at a time.
        page_size: Tokens a page.
        way: Of the LSE merge.
        attention: What takes the place of each attention module's ``forward``.
    """

    def __init__(
        self,
        comm: Communicator,
        model: Model,
        max_tokens: int,
        requests: int = 1,
        interleave: int = 1,
        page_size: int = 8,
        way: str = "all_to_all",
        attention: "type[ShardedAttention] | None" = None,
    ) -> None:
        self._rank = Rank(comm, model.config, requests, max_tokens, interleave, page_size, way)
        self._model = copy.deepcopy(model).to(comm.device)
        self._past = 0
        for layer in self._model.model.layers:
            sharded = (attention or ShardedAttention)(layer.self_attn, self._rank)
            layer.self_attn.forward = sharded.forward

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Run the next tokens int64 (requests, n) of all requests; collective.

        Returns:
            Their logits, float32 (requests, n, vocabulary).
        """
        count = tokens.shape[1]
        positions = torch.arange(self._past, self._past + count, device=tokens.device)
        self._rank.begin(self._past, count)
        self._past += count
        answer = self._model(tokens, position_ids=positions[None], use_cache=False)
        logits: Tensor = answer.logits
        return logits


class ShardedAttention:
    """One attention module over the ranks: select, attend to what is here, merge.

    The latent row of a token is its key for all heads and its first part is the value: the
    projections from latents to keys and values are applied to queries and outputs instead.

    Args:
        module: transformers' ``DeepseekV32Attention`` or ``GlmMoeDsaAttention``.
        rank: What the layers of this rank share.
    """

    def __init__(self, module: Any, rank: Rank) -> None:
        self.module, self.rank = module, rank
        self.dim: int = module.kv_lora_rank
        self.shares = bool(getattr(module, "skip_topk", False))
        self._latents = rank.cache(self.dim + module.qk_rope_head_dim)
        self._index_keys = rank.cache(0 if self.shares else module.indexer.head_dim)
        projection = module.kv_b_proj.weight.unflatten(0, (module.num_heads, -1))
        self._to_keys = projection[:, : module.qk_nope_head_dim]
        self._to_values = projection[:, module.qk_nope_head_dim :]

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Angles,
        prev_topk_indices: Tensor | None = None,
        **_: object,
    ) -> tuple[Tensor | None, ...]:
        """Return what the module would: output, no weights and, for GLM, the selection."""
        module = self.module
        residual = module.q_a_layernorm(module.q_a_proj(hidden_states))
        q, latents = self._projected(hidden_states, residual, position_embeddings)
        self.rank.keep(self._latents, latents)
        if self.shares:
            selection = self.shared(prev_topk_indices)
        else:
            selection = self._select(hidden_states, residual, position_embeddings)
        mine = self.combine(*self.attend(q, selection))
        out = torch.einsum("thr,hvr->thv", self.rank.all_heads(mine), self._to_values)
        output = module.o_proj(out.reshape(*hidden_states.shape[:2], -1))
        return (output, None, selection) if hasattr(module, "skip_topk") else (output, None)

    def shared(self, selection: Tensor | None) -> Tensor:
        """Return what a layer without an indexer attends to: the selection of one before it."""
        if selection is None:
            raise ValueError("the first layer must select for itself")
        return selection

    def select(self, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Return this rank's winners as slots, int32 (T, any)."""
        return self.rank.select(q, weights, keys)

    def attend(self, q: Tensor, selection: Tensor) -> tuple[Tensor, Tensor]:
        """Return all heads' attention to this rank's winners."""
        keys = self._latents.flatten(0, 1)[:, None]
        return sparse_attention(q, keys, self.dim, selection, scale=float(self.module.scaling))

    def combine(self, partial: Tensor, lse: Tensor) -> Tensor:
        """Return this rank's heads over all winners."""
        return self.rank.combine(partial, lse)

    def _select(self, hidden_states: Tensor, residual: Tensor, angles: Angles) -> Tensor:
        """Keep the step's index keys, then select."""
        q, weights, keys = index_inputs(self.module.indexer, hidden_states, residual, angles)
        self.rank.keep(self._index_keys, keys)
        return self.select(q, weights, self._index_keys)

    def _projected(
        self, hidden_states: Tensor, residual: Tensor, angles: Angles
    ) -> tuple[Tensor, Tensor]:
        """Return queries in latent space (T, H, dim + rope) and latent rows (T, dim + rope)."""
        module = self.module
        q = module.q_b_proj(residual).unflatten(2, (-1, module.qk_head_dim)).transpose(1, 2)
        q, q_rot = q.split([module.qk_nope_head_dim, module.qk_rope_head_dim], dim=-1)
        kv = module.kv_a_proj_with_mqa(hidden_states)
        latent, k_rot = kv.split([self.dim, module.qk_rope_head_dim], dim=-1)
        rotate = _function(module, "apply_rotary_pos_emb_interleave")
        q_rot, k_rot = rotate(q_rot, k_rot[:, None], *angles)
        q = torch.cat([torch.einsum("bhsn,hnr->bhsr", q, self._to_keys), q_rot], dim=-1)
        rows = torch.cat([module.kv_a_layernorm(latent), k_rot[:, 0]], dim=-1)
        return q.transpose(1, 2).flatten(0, 1), rows.flatten(0, 1)


def index_inputs(
    indexer: Any, hidden_states: Tensor, residual: Tensor, angles: Angles
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what a `SparseIndexer` takes, by the weights of transformers' indexer.

    DeepSeek's indexer rotates halves, GLM's pairs; GLM's module has no function for halves.

    Returns:
        Queries (T, heads, D), weights (T, heads), the tokens' keys (T, D); T = requests * n.
    """
    heads, rope = indexer.n_heads, indexer.qk_rope_head_dim
    q = indexer.wq_b(residual).unflatten(2, (heads, -1))
    k = indexer.k_norm(indexer.wk(hidden_states))[:, :, None]
    rotate = _function(indexer, "apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave")
    q_rot, k_rot = rotate(q[..., :rope], k[..., :rope], *angles, unsqueeze_dim=2)
    q = torch.cat([q_rot, q[..., rope:]], dim=-1)
    k = torch.cat([k_rot, k[..., rope:]], dim=-1)
    weights = indexer.weights_proj(hidden_states).float() * heads**-0.5
    return q.flatten(0, 1), weights.flatten(0, 1), k[:, :, 0].flatten(0, 1)


def _function(module: Any, *names: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the first function of these names in the file that a module's class is from."""
    names_there = vars(sys.modules[type(module).__module__])
    found: Callable[..., tuple[Tensor, Tensor]] = next(
        names_there[name] for name in names if name in names_there
    )
    return found
