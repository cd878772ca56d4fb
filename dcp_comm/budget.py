"""The memory of a whole model on one rank: who reserves what, and the tokens that it leaves.

Three owners take scratch from one workspace, one after another, so that the largest counts: both
paths of the indexer with their merge, and the LSE merge of the attention. A communicator comes on
top. Beside the sharded index stand the ways that need no merge in prefill. Arithmetic alone.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from dcp_comm import footprint
from dcp_comm.checks import check_int
from dcp_comm.indexer import IndexerLimits
from dcp_comm.indexer.decode import Decode
from dcp_comm.indexer.path import Path
from dcp_comm.indexer.prefill import Prefill
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.models import INDEX_KEY_BYTES, Model
from dcp_comm.planning import free_bytes, model_of
from dcp_comm.specs import BufferSpec, layout
from dcp_comm.topk.cost import KEY_BYTES, Scheme, schemes

ATTENTION_ROWS = 1024
"""Rows of an LSE merge that are exchanged at a time."""
SEED_ROWS = 1024
GAIN_ROWS = (1024, 2048)


@dataclass(frozen=True)
class Design:
    """One way to have an index, and what it costs a rank.

    Attributes:
        name: ``sharded``, ``replicated`` or ``split rows``.
        merge: What merges the ranks' top-K: a scheme of `dcp_comm.topk.cost`; empty for nothing.
        reserved: Bytes of scratch by owner; they share one workspace.
        communicator: Bytes of a communicator of our own.
        token_bytes: Bytes of a token's KV cache and index keys.
        tokens: Tokens of context that fit, dealt over all ranks; None without ``memory``.
    """

    name: str
    merge: str
    reserved: dict[str, int]
    communicator: int
    token_bytes: float
    tokens: int | None = None

    @property
    def workspace(self) -> int:
        """Bytes of the workspace: its largest owner's."""
        return max(self.reserved.values())

    @property
    def nbytes(self) -> int:
        """Bytes of workspace and communicator."""
        return self.workspace + self.communicator


@dataclass(frozen=True)
class Gain:
    """A merge's scratch against the published merge's of 1024-row chunks, and what that is in KV.

    Attributes:
        merge: The scheme.
        chunk_rows: Rows exchanged at a time.
        scratch_bytes: Its scratch, without alignment.
        published_bytes: That of the comparison.
        adopted: Tokens of KV cache gained over the engine's own communicator, adopted.
        own: Tokens gained (or lost, below 0) with a communicator of our own.
    """

    merge: str
    chunk_rows: int
    scratch_bytes: int
    published_bytes: int
    adopted: int
    own: int


@dataclass(frozen=True)
class Budget:
    """What `budget` returns.

    Attributes:
        model: Whose.
        size: Number of ranks p.
        limits: What the indexer is built for.
        communicator: Bytes that one of our own takes.
        designs: The published merge first, then ours, then the rivals.
        gains: At each number of rows in `GAIN_ROWS`.
    """

    model: Model
    size: int
    limits: IndexerLimits
    communicator: int
    designs: tuple[Design, ...]
    gains: tuple[Gain, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)


def budget(
    model: str,
    size: int = 4,
    *,
    query_rows: int = 8192,
    requests: int = 32,
    max_model_len: int = 786_432,
    next_n: int = 1,
    communicator: int = footprint.MEASURED_BYTES,
    memory: float | None = None,
    utilization: float = 0.945,
    weights: float = 0.0,
) -> Budget:
    """Return what serving a model costs each rank beside its weights and its cache.

    Args:
        model: A name of `dcp_comm.models.MODELS`.
        size: Number of ranks p.
        query_rows: As for `IndexerLimits`, like the next three.
        requests: Likewise.
        max_model_len: Likewise.
        next_n: Likewise.
        communicator: Bytes that a communicator of our own takes; 0 where the engine's is adopted.
        memory: GiB of a rank's device; None to count no tokens.
        utilization: Share of ``memory`` that may be used.
        weights: GiB that are in use before any KV cache.

    Raises:
        CommArgumentError: An argument is not as above.
    """
    found = model_of(model)
    check_int("budget", "size", size, 1)
    check_int("budget", "communicator", communicator, 0, 2**63 - 1)
    limits = IndexerLimits(
        found.k,
        found.index_heads,
        found.index_dim,
        query_rows,
        requests,
        max_model_len,
        next_n=next_n,
    )
    free = None if memory is None else free_bytes(memory, utilization, weights)
    designs = _designs(found, limits, size, communicator)
    counted = (
        each
        if free is None
        else replace(each, tokens=int(max(0, free - each.nbytes) / each.token_bytes))
        for each in designs
    )
    gains = tuple(_gains(found, limits.k, size, communicator))
    return Budget(found, size, limits, communicator, tuple(counted), gains)


def attention_bytes(model: Model, rows: int, size: int) -> int:
    """Return the scratch of an LSE merge of bfloat16 outputs by one all-to-all.

    Two messages, sent and received, each of a block a rank: LSEs and outputs of its H / p heads.
    """
    heads = -(-model.heads // size)
    block = min(rows, ATTENTION_ROWS) * heads * (4 + 2 * model.value_dim)
    return 2 * size * -(-block // 16) * 16


def _designs(model: Model, limits: IndexerLimits, size: int, communicator: int) -> Iterator[Design]:
    """Yield the comparison, our merges, and the ways without a merge."""
    token_bytes = model.token_bytes / size
    attention = {"attention": attention_bytes(model, limits.query_rows, size)}
    for scheme in _schemes(limits.k, size):
        reserved = {
            "indexer prefill": _reserved(Prefill, limits, size, limits.query_rows, scheme),
            "indexer decode": _reserved(Decode, limits, size, limits.decode_rows, scheme),
            **attention,
        }
        own = communicator if scheme.strategy else 0
        yield Design("sharded", scheme.name, reserved, own, token_bytes)
    if size == 1:
        return
    whole = {
        "indexer prefill": _reserved(Prefill, limits, 1, limits.query_rows),
        "indexer decode": _reserved(Decode, limits, 1, limits.decode_rows),
        **attention,
    }
    more = model.index_layers * INDEX_KEY_BYTES * (size - 1) / size
    yield Design("replicated", "", whole, 0, token_bytes + more)
    yield _split_rows(model, limits, size, communicator, attention)


def _split_rows(
    model: Model, limits: IndexerLimits, size: int, communicator: int, attention: dict[str, int]
) -> Design:
    """Prefill gathers all keys and each rank scores its part of the rows; decode has to merge."""
    gather = next(each for each in _schemes(limits.k, size) if each.strategy == "gather")
    gathered = BufferSpec("gathered keys", (limits.max_model_len * INDEX_KEY_BYTES,), torch.uint8)
    part = -(-limits.query_rows // size)
    reserved = {
        "indexer prefill": _nbytes(Prefill.buffers(limits, 1, part), gathered),
        "indexer decode": _reserved(Decode, limits, size, limits.decode_rows, gather),
        **attention,
    }
    return Design("split rows", gather.name, reserved, communicator, model.token_bytes / size)


def _reserved(
    path: type[Path], limits: IndexerLimits, size: int, rows: int, scheme: Scheme | None = None
) -> int:
    """Bytes that a path takes at once, the scratch of its merge included."""
    nbytes = scheme.scratch_bytes(min(rows, scheme.chunk_rows)) if scheme else 0
    merge = BufferSpec("merge", (nbytes // KEY_BYTES,), torch.int64)
    return _nbytes(path.buffers(limits, size, rows), merge)


def _nbytes(buffers: tuple[BufferSpec, ...], *more: BufferSpec) -> int:
    return layout("budget", (*buffers, *more))[1]


def _schemes(k: int, size: int) -> tuple[Scheme, ...]:
    """Return what merges for a rank's own winners, the comparison first."""
    return schemes(k, size, splitter_shape(k, size), "local")


def _gains(model: Model, k: int, size: int, communicator: int) -> Iterator[Gain]:
    published, *ours = _schemes(k, size)
    seed, token_bytes = published.scratch_bytes(SEED_ROWS), model.token_bytes / size
    for rows in GAIN_ROWS:
        for scheme in ours:
            scratch = scheme.scratch_bytes(rows)
            saved = seed - scratch
            adopted, own = (int(each / token_bytes) for each in (saved, saved - communicator))
            yield Gain(scheme.name, rows, scratch, seed, adopted, own)
