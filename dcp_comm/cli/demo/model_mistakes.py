"""What goes wrong in sharded attention, each as our own way with one stage replaced."""

import math

import torch
from torch import Tensor

from dcp_comm.indexer import relu_scores
from dcp_comm.testing.models.sharded import ShardedAttention
from dcp_comm.topk.local import local_topk


class Union(ShardedAttention):
    """Exchange nothing: every rank attends to its own K, so that all together are too many."""

    def select(self, q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
        """Take the rank's own top-K of each row."""
        scores = torch.zeros(len(q), len(keys.flatten(0, 1)), device=q.device)
        relu_scores(scores, q, weights, keys.flatten(0, 1).nan_to_num())
        own = self.rank.everything()
        own_scores = scores.gather(1, own.clamp(min=0).long()).masked_fill(own < 0, -torch.inf)
        _, best = local_topk(own_scores, self.module.indexer.index_topk)
        return own.gather(1, best.clamp(min=0).long()).masked_fill(best < 0, -1)


class Sharing(ShardedAttention):
    """Ignore that a layer shares the selection of the one before: it attends to all tokens."""

    def shared(self, selection: Tensor | None) -> Tensor:
        """Take every token that a row sees."""
        return self.rank.everything()


class Forgotten(ShardedAttention):
    """Forget the LSE merge: each rank takes its own heads from its own attention."""

    def combine(self, partial: Tensor, lse: Tensor) -> Tensor:
        """Take a slice."""
        comm = self.rank.comm
        return partial.chunk(comm.size, dim=1)[comm.rank]


class Averaged(ShardedAttention):
    """Average the ranks' outputs, as if every rank's tokens were worth the same."""

    def combine(self, partial: Tensor, lse: Tensor) -> Tensor:
        """Merge with equal LSEs."""
        return super().combine(partial, torch.zeros_like(lse))


class Empty(ShardedAttention):
    """Give the LSE of a rank without a token as 0, which is worth something."""

    def combine(self, partial: Tensor, lse: Tensor) -> Tensor:
        """Merge with 0 for -inf."""
        return super().combine(partial, lse.masked_fill(lse == -torch.inf, 0))


class Base(ShardedAttention):
    """Merge LSEs to base 2 as if they were natural."""

    def combine(self, partial: Tensor, lse: Tensor) -> Tensor:
        """Merge with the wrong logarithm."""
        return super().combine(partial, lse * math.log2(math.e))


MODEL_MISTAKES: dict[str, type[ShardedAttention]] = {
    "union": Union,
    "sharing": Sharing,
    "lse-forgotten": Forgotten,
    "lse-averaged": Averaged,
    "lse-empty": Empty,
    "lse-base": Base,
}
