"""Models that others wrote, whole and sharded: HF transformers' DeepSeek-V3.2 and GLM DSA.

1. ``model = small_model("glm-5", seed)``: their modules, a small random configuration.
2. ``sharded = ShardedModel(comm, model, max_tokens)``: the same model on every rank, but each layer
   selects and attends sharded over the ranks, through this library.
3. ``truth = Truth.of(model, prompt, steps)``: their own eager forward, decoding greedily;
   ``compare(sharded, truth)``: logits and tokens of both.

transformers is imported only here, and only when a model is asked for.
"""

from dcp_comm.testing.models.comparing import Comparison, Truth, compare
from dcp_comm.testing.models.sharded import ShardedModel
from dcp_comm.testing.models.small import MODELS, require_transformers, small_model

__all__ = [
    "MODELS",
    "Comparison",
    "ShardedModel",
    "Truth",
    "compare",
    "require_transformers",
    "small_model",
]
