"""What transformers' own indexer selects, unsharded, and what ours does over the ranks.

The scores that say where rounding may decide are computed here, in float64 numpy, from the weights
of the indexer and nothing of the product.
"""

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer
from dcp_comm.testing.models import small_model
from dcp_comm.testing.models.sharded import index_inputs
from dcp_comm.testing.models.small import new_cache
from dcp_comm.workspace import Workspace
from tests import oracle

Doubles = npt.NDArray[np.float64]
Sets = list[set[int]]


@dataclass(frozen=True)
class Selection:
    """A prompt and some decode steps of one request, through the first indexer of a model.

    Attributes:
        name, seed: The model.
        steps: Tokens of each call; the first is the prompt.
    """

    name: str
    seed: int
    steps: tuple[int, ...]
    interleave: int = 1

    @property
    def tokens(self) -> int:
        return sum(self.steps)

    @cached_property
    def model(self) -> Any:
        return small_model(self.name, self.seed)

    @property
    def indexer(self) -> Any:
        return self.model.model.layers[0].self_attn.indexer

    @cached_property
    def hidden(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        shape = 1, self.tokens, self.model.config.hidden_size
        return torch.randn(shape, generator=generator)

    @cached_property
    def residual(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1)
        shape = 1, self.tokens, self.model.config.q_lora_rank
        return torch.randn(shape, generator=generator)

    @cached_property
    def angles(self) -> tuple[Tensor, Tensor]:
        positions = torch.arange(self.tokens)[None]
        cos, sin = self.model.model.rotary_emb(self.hidden, position_ids=positions)
        return cos, sin

    def calls(self) -> list[slice]:
        """The tokens of each call."""
        ends = np.cumsum(self.steps).tolist()
        return [slice(end - count, end) for end, count in zip(ends, self.steps, strict=True)]

    def inputs(self, call: slice) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """What an indexer is given for some tokens."""
        cos, sin = self.angles
        angles = cos[:, call], sin[:, call]
        return self.hidden[:, call], self.residual[:, call], angles

    def theirs(self) -> Sets:
        """The visible tokens that transformers' indexer selects, row by row, with its cache."""
        cache, sets = new_cache(self.model), list[set[int]]()
        for call in self.calls():
            rows, tokens = torch.arange(call.start, call.stop), torch.arange(call.stop)
            mask = torch.where(tokens > rows[:, None], torch.finfo(torch.float32).min, 0.0)[None]
            found = self.indexer(*self.inputs(call), mask, rows[None], cache=cache)[0]
            for row, ids in zip(rows.tolist(), found.tolist(), strict=True):
                sets.append({token for token in ids if token <= row})
        return sets

    def gaps(self) -> Doubles:
        """How far the K-th score of each row is above the next, relative to it."""
        weights = {name: w.double().numpy() for name, w in self.indexer.state_dict().items()}
        config, k = self.model.config, self.model.config.index_topk
        heads, dim, rope = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
        hidden, residual = self.hidden[0].double().numpy(), self.residual[0].double().numpy()
        q = (residual @ weights["wq_b.weight"].T).reshape(-1, heads, dim)
        key = hidden @ weights["wk.weight"].T
        key = (key - key.mean(1, keepdims=True)) / np.sqrt(key.var(1, keepdims=True) + 1e-6)
        key = key * weights["k_norm.weight"] + weights["k_norm.bias"]
        halves = hasattr(sys.modules[type(self.indexer).__module__], "apply_rotary_pos_emb")
        q[..., :rope] = rotated(q[..., :rope], halves)
        key[..., :rope] = rotated(key[:, None, :rope], halves)[:, 0]
        products = np.maximum(np.einsum("thd,sd->ths", q, key), 0)
        scores = np.einsum("ths,th->ts", products, hidden @ weights["weights_proj.weight"].T)
        result = np.full(self.tokens, np.inf)
        for row in range(k, self.tokens):
            best = np.sort(scores[row, : row + 1])[::-1]
            result[row] = (best[k - 1] - best[k]) / abs(best[k - 1])
        return result


def rotated(x: Doubles, halves: bool) -> Doubles:
    """Rotary embedding of (tokens, heads, dim) in float64; theta 10,000."""
    tokens, _, dim = x.shape
    angle = np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(0, dim, 2) / dim)
    turn = np.exp(1j * angle)[:, None]
    if halves:
        pairs = x[..., : dim // 2] + 1j * x[..., dim // 2 :]
    else:
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
    turned = pairs * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def ours(comm: Communicator, case: Selection) -> list[list[int]]:
    """The global ids of this rank's winners, row by row: prefill, then decode."""
    config, size, page = case.model.config, comm.size, 4 * case.interleave
    limits = IndexerLimits(
        k=config.index_topk,
        heads=config.index_n_heads,
        head_dim=config.index_head_dim,
        query_rows=max(case.steps),
        requests=1,
        max_model_len=case.tokens,
        interleave=case.interleave,
        page_size=page,
    )
    indexer = SparseIndexer(comm, limits, scale=config.index_head_dim**-0.5)
    workspace = Workspace()
    indexer.reserve(workspace)
    workspace.lock()
    pages = -(-limits.local_tokens(size) // page)
    cache = torch.full((pages, page, config.index_head_dim), torch.nan)
    table, rows = torch.arange(pages)[None], []
    for call in case.calls():
        q, weights, keys = index_inputs(case.indexer, *case.inputs(call))
        hand = oracle.deal(call.stop, size, case.interleave)[comm.rank]
        for j, token in enumerate(hand):
            if token >= call.start:
                cache.view(-1, config.index_head_dim)[j] = keys[token - call.start]
        batch = IndexerBatch([call.stop], [call.stop - call.start], table)
        select = indexer.prefill if call.start == 0 else indexer.decode
        found = select(q, weights, cache, batch, workspace=workspace)
        rows += [[hand[j] for j in ids if j >= 0] for ids in found.ids.tolist()]
    return rows


def compared(case: Selection, ranks: list[list[list[int]]]) -> tuple[int, list[int]]:
    """How many rows were compared, and those that differ.

    Raises:
        AssertionError: Two ranks selected one token.
    """
    certain = case.gaps() > 1e-6
    wrong = []
    for row, (want, sure) in enumerate(zip(case.theirs(), certain, strict=True)):
        mine = [token for rank in ranks for token in rank[row]]
        assert len(set(mine)) == len(mine)
        if sure and set(mine) != want:
            wrong.append(row)
    return int(certain.sum()), wrong
