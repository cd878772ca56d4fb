"""The sizes of known models, as far as memory depends on them."""

from dataclasses import dataclass

GIB = 1 << 30
INDEX_KEY_BYTES = 132
"""Bytes of one index key: 128 fp8 values and a fp32 scale."""


@dataclass(frozen=True)
class Model:
    """What a token costs in a model's KV cache, over all ranks, and what its layers work on.

    Attributes:
        name: What `dcp_comm.plan` takes as ``model``.
        layers: Layers that attend, each with its own latent of a token.
        layer_bytes: Bytes of a latent.
        index_layers: Layers with an indexer of their own, each with an index key of a token.
        heads: Attention heads.
        value_dim: Elements of a head's output before it is projected up: those of a latent.
        index_heads: Heads of an indexer.
        index_dim: Elements of an index key.
        k: Tokens that an indexer selects.
        source: Where the figures come from.
    """

    name: str
    layers: int
    layer_bytes: int
    index_layers: int
    heads: int
    value_dim: int
    index_heads: int
    index_dim: int
    k: int
    source: str

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers, `INDEX_KEY_BYTES` an index key."""
        return self.layers * self.layer_bytes + self.index_layers * INDEX_KEY_BYTES


_LATENT = "fp8_ds_mla, 512 fp8 + 4 fp32 scales + 64 bf16 a layer (FlashMLA)"
_GLM_5_3 = (
    "78 layers, 21 with an indexer, and a draft layer with its own; 13.25 GiB hold 1,039,616 tokens"
)
MODELS = {
    model.name: model
    for model in (
        Model(
            name="deepseek-v3.2",
            layers=61,
            layer_bytes=656,
            index_layers=61,
            heads=128,
            value_dim=512,
            index_heads=64,
            index_dim=128,
            k=2048,
            source=f"{_LATENT}; 61 layers, all with an indexer",
        ),
        Model(
            name="glm-5",
            layers=78,
            layer_bytes=656,
            index_layers=78,
            heads=64,
            value_dim=512,
            index_heads=32,
            index_dim=128,
            k=2048,
            source=f"{_LATENT}; 78 layers, all with an indexer, as its configuration has them",
        ),
        Model(
            name="glm-5.3",
            layers=79,
            layer_bytes=656,
            index_layers=22,
            heads=64,
            value_dim=512,
            index_heads=32,
            index_dim=128,
            k=2048,
            source=f"{_LATENT}; {_GLM_5_3} on each of 4 ranks, as vLLM reports",
        ),
    )
}
