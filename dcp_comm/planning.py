"""What a configuration costs before anything runs: memory, traffic, and tokens of KV cache.

`plan` puts every way of merging side by side, with the two rivals that need no merge; `curve` walks
the shapes that an engine meets. Both are arithmetic: no device and no other rank is needed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch

from dcp_comm.checks import check_int
from dcp_comm.errors import CommArgumentError, refusal
from dcp_comm.kernels.lemma import SplitterShape, splitter_shape
from dcp_comm.models import GIB, INDEX_KEY_BYTES, MODELS, Model
from dcp_comm.topk.choice import STRATEGIES
from dcp_comm.topk.cost import ID_BYTES, Scheme, schemes
from dcp_comm.topk.measured import GPU, link_between
from dcp_comm.topk.rates import LINKS

LOGITS = 1 << 27
"""Scores that one step of an engine holds at most: 512 MiB of fp32."""
DECODE_ROWS = (1, 8, 32, 128)
PREFILL_LENGTHS = tuple(1 << bit for bit in range(14, 21))
_GPUS = torch.device("cuda")


@dataclass(frozen=True)
class Route:
    """One way to merge, and what it costs each rank for all rows.

    Attributes:
        name: The scheme, as in `dcp_comm.topk.cost`.
        available: Whether `TopKMerge` offers it.
        output: What every rank learns: ``global`` ids of all winners, or its ``local`` ones.
        chunk_rows: Rows exchanged at a time.
        rounds: Collectives one after the other, over all chunks.
        scratch_bytes: Scratch of a chunk, without alignment.
        unchunked_bytes: Scratch if all rows were one chunk.
        received_bytes: Bytes received over all chunks.
        exchange_us: Modelled microseconds on each link.
        local_us: Modelled microseconds of sorting and selection on an H200.
        merge_us: Modelled microseconds of a whole merge between H200, as ``auto`` weighs it.
        split_below: Tokens of context below which splitting the query rows (gather the index keys,
            rank rows / p, gather ids) would receive fewer bytes.
    """

    name: str
    available: bool
    output: str
    chunk_rows: int
    rounds: int
    scratch_bytes: int
    unchunked_bytes: int
    received_bytes: int
    exchange_us: dict[str, float]
    local_us: float
    merge_us: float
    split_below: int


@dataclass(frozen=True)
class Holding:
    """What a rank's memory holds with one reservation.

    Attributes:
        route: The merge that reserves; empty for none.
        reserved: Bytes by owner.
        cache_bytes: Bytes left for the KV cache.
        tokens: Tokens of context that fit, dealt over all ranks.
    """

    route: str
    reserved: dict[str, int]
    cache_bytes: int
    tokens: int


@dataclass(frozen=True)
class Plan:
    """What `plan` returns.

    Attributes:
        rows: T.
        k: K.
        size: p.
        splitter: The sizes of the splitter's messages.
        routes: The comparison first, then the strategies.
        replicated_bytes: More KV cache a token, rank and layer with an indexer of the rival that
            keeps all index keys on every rank, and exchanges nothing.
        replicated_loss: Share of the tokens that then fit no more, if the model is known.
        model: Whose tokens are counted, if a preset was named.
        token_bytes: Bytes a token costs each rank, if known.
        holdings: Without a merge, then with each route; empty without ``memory``.
    """

    rows: int
    k: int
    size: int
    splitter: SplitterShape
    routes: tuple[Route, ...]
    replicated_bytes: float
    replicated_loss: float | None
    model: Model | None
    token_bytes: float | None
    holdings: tuple[Holding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)


def plan(
    rows: int = 8192,
    k: int = 2048,
    size: int = 4,
    chunk_rows: int | None = None,
    *,
    block: int | None = None,
    model: str | None = None,
    bytes_per_token: float | None = None,
    memory: float | None = None,
    utilization: float = 0.945,
    weights: float = 0.0,
    reserved: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """Return what each way of merging costs a rank, and what that means for its KV cache.

    Args:
        rows: Query rows T of one step.
        k: Winners a row K.
        size: Number of ranks p.
        chunk_rows: Rows exchanged at a time; None for each route's default.
        block: Block size B of the splitter; None for the one that moves least.
        model: A name of `MODELS`, for the bytes of a token.
        bytes_per_token: Bytes a token costs each rank, instead of a model: its KV cache by the
            tokens that fit.
        memory: GiB of a rank's device; None to count no tokens.
        utilization: Share of ``memory`` that may be used.
        weights: GiB that are in use before any KV cache: weights, activations, graphs.
        reserved: Bytes of every other owner of scratch that is alive together with the merge's.

    Raises:
        CommArgumentError: An argument is not as above, or ``memory`` comes without a model.
    """
    optional = {"chunk_rows": chunk_rows, "block": block}
    given = {name: value for name, value in optional.items() if value is not None}
    _check(rows=rows, k=k, size=size, **given)
    found = _given_model(model, bytes_per_token)
    token = found.token_bytes / size if found else bytes_per_token
    shape = splitter_shape(k, size, block)
    routes = tuple(
        _route(scheme, rows, k, min(rows, chunk_rows or scheme.chunk_rows))
        for scheme in schemes(k, size, shape)
    )
    free = None if memory is None else free_bytes(memory, utilization, weights)
    holdings = () if free is None else tuple(_hold(routes, token, free, dict(reserved)))
    return Plan(rows, k, size, shape, routes, *_replicated(size, found), found, token, holdings)


def curve(
    k: int = 2048, sizes: Iterable[int] = (2, 4, 8), block: int | None = None
) -> tuple[tuple[int | None, Plan], ...]:
    """Return the lengths of context that an engine meets, with a plan for every number of ranks.

    Prefill walks rows * length = `LOGITS`, at most 8192 rows a step. Decode comes last, under None:
    its merge costs the same at any length.

    Raises:
        CommArgumentError: An argument is not as in `plan`.
    """
    shapes: list[tuple[int | None, int]] = [(n, min(8192, LOGITS // n)) for n in PREFILL_LENGTHS]
    shapes += [(None, rows) for rows in DECODE_ROWS]
    return tuple(
        (length, plan(rows, k, size, block=block)) for length, rows in shapes for size in sizes
    )


def _route(scheme: Scheme, rows: int, k: int, chunk: int) -> Route:
    received = scheme.received_bytes(rows, chunk)
    return Route(
        name=scheme.name,
        available=scheme.strategy in STRATEGIES,
        output=scheme.output,
        chunk_rows=chunk,
        rounds=scheme.rounds * -(-rows // chunk),
        scratch_bytes=scheme.scratch_bytes(chunk),
        unchunked_bytes=scheme.scratch_bytes(rows),
        received_bytes=received,
        exchange_us={link.name: scheme.exchange_us(rows, link, chunk) for link in LINKS.values()},
        local_us=scheme.local_us(rows, GPU, chunk),
        merge_us=scheme.merge_us(rows, link_between(_GPUS, scheme.size, {}), GPU, chunk),
        split_below=_split_below(received, rows, k, scheme.size),
    )


def _split_below(received: int, rows: int, k: int, size: int) -> int:
    """Tokens whose keys can be gathered, and ids after them, for ``received`` bytes a rank."""
    if size == 1:
        return 0
    return max(0, received * size // (size - 1) - ID_BYTES * k * rows) // INDEX_KEY_BYTES


def _replicated(size: int, model: Model | None) -> tuple[float, float | None]:
    layer = INDEX_KEY_BYTES * (size - 1) / size
    more = layer * model.index_layers if model else 0.0
    return layer, more / (more + model.token_bytes / size) if model else None


def free_bytes(memory: float, utilization: float, weights: float) -> int:
    """Return the bytes of a device that are left for KV cache and scratch, both in GiB.

    Raises:
        CommArgumentError: An argument is out of range.
    """
    _check_range("memory", memory, 0.0)
    _check_range("utilization", utilization, 0.0, 1.0)
    _check_range("weights", weights, 0.0)
    return int((memory * utilization - weights) * GIB)


def _hold(
    routes: tuple[Route, ...], token_bytes: float | None, free: int, others: dict[str, int]
) -> Iterator[Holding]:
    if token_bytes is None:
        raise _refused("memory", "no model beside it", "a model or bytes_per_token")
    for owner, nbytes in others.items():
        check_int("plan", f"reserved[{owner!r}]", nbytes, 0, 2**63 - 1)
    merges = [("", {}), *((route.name, {"merge": route.scratch_bytes}) for route in routes)]
    for name, merge in merges:
        left = max(0, free - sum(others.values()) - sum(merge.values()))
        yield Holding(name, others | merge, left, int(left / token_bytes))


def _given_model(name: str | None, bytes_per_token: float | None) -> Model | None:
    if name is not None and bytes_per_token is not None:
        raise _refused("model", repr(name), "bytes_per_token or a model", "Pass one of them")
    if bytes_per_token is not None:
        _check_range("bytes_per_token", bytes_per_token, 1.0)
    if name is None:
        return None
    return model_of(name)


def model_of(name: object) -> Model:
    """Return the model of that name.

    Raises:
        CommArgumentError: There is none.
    """
    if not isinstance(name, str) or name not in MODELS:
        need = "one of " + ", ".join(MODELS)
        raise _refused("model", repr(name), need, "Pass bytes_per_token for another model")
    return MODELS[name]


def _check(**counts: int) -> None:
    for name, value in counts.items():
        check_int("plan", name, value, 1)


def _check_range(name: str, value: float, least: float, most: float = math.inf) -> None:
    number = isinstance(value, int | float) and math.isfinite(value)
    if not number or not least <= value <= most:
        limit = "" if math.isinf(most) else f" and at most {most:g}"
        raise _refused(name, repr(value), f"a finite number of at least {least:g}{limit}")


def _refused(argument: str, got: object, need: str, remedy: str = "") -> CommArgumentError:
    return CommArgumentError(refusal("plan", argument, got, need, remedy=remedy))
