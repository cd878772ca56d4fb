"""Small models of HF transformers' own classes, with random configurations and weights."""

import random
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from dcp_comm.errors import CommUsageError

MODELS = {"deepseek-v3.2": ("deepseek_v32", "DeepseekV32"), "glm-5": ("glm_moe_dsa", "GlmMoeDsa")}
"""By the model's name: transformers' folder and prefix of its classes."""

Model = Any
"""A transformers model for causal language modelling."""


def require_transformers() -> None:
    """Check that transformers is installed, without importing it.

    Raises:
        CommUsageError: It is not.
    """
    if find_spec("transformers") is None:
        raise CommUsageError(
            "testing.models: transformers is not installed, and its modules are what is compared "
            'with. Install it with pip install "transformers>=5.17"'
        )


def small_model(name: str, seed: int) -> Model:
    """Return a model whose sizes and weights are drawn at random, the same for a seed everywhere.

    Args:
        name: One of `MODELS`.
        seed: Where everything is drawn from.

    Returns:
        A float32 model on the CPU, in evaluation mode, with eager attention. A layer or two of the
        GLM share the selection of the layer before them.

    Raises:
        CommUsageError: transformers is not installed.
    """
    require_transformers()
    folder, prefix = MODELS[name]
    package = f"transformers.models.{folder}"
    config_class = getattr(import_module(f"{package}.configuration_{folder}"), f"{prefix}Config")
    model_class = getattr(import_module(f"{package}.modeling_{folder}"), f"{prefix}ForCausalLM")
    config = config_class(**_sizes(name, random.Random(seed)))  # noqa: S311
    config._attn_implementation = config._experts_implementation = "eager"
    model = model_class(config).train(False)
    _draw_weights(model, seed)
    return model


def new_cache(model: Model) -> Any:
    """Return transformers' own cache for a model, empty."""
    return import_module("transformers").DynamicCache(config=model.config)


def _sizes(name: str, draw: random.Random) -> dict[str, Any]:
    """Draw a configuration; with fewer index heads scores would tie, and prove nothing."""
    layers = draw.choice((3, 4))
    sizes: dict[str, Any] = {
        "vocab_size": 199,
        "hidden_size": draw.choice((48, 64)),
        "intermediate_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": layers,
        "first_k_dense_replace": 1,
        "num_attention_heads": (heads := draw.choice((4, 8))),
        "num_key_value_heads": heads,
        "n_shared_experts": 1,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "kv_lora_rank": draw.choice((16, 24, 32)),
        "q_lora_rank": draw.choice((24, 32)),
        "qk_rope_head_dim": draw.choice((8, 16)),
        "qk_nope_head_dim": draw.choice((8, 16)),
        "v_head_dim": draw.choice((8, 12, 16)),
        "index_n_heads": draw.choice((16, 24, 32)),
        "index_head_dim": draw.choice((16, 24, 32)),
        "index_topk": draw.choice((13, 16, 24)),
        "max_position_embeddings": 4096,
    }
    if name == "glm-5":
        sizes["indexer_types"] = ["full", "shared", "full", "shared"][:layers]
    return sizes


def _draw_weights(model: Model, seed: int) -> None:
    """Draw every matrix so that activations keep their size: attention then is far from uniform."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)
