"""The calls that ``dcp-comm bench collectives`` times, and how it times them."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from dcp_comm.communicator import Communicator

PLACES = {
    "all_gather_into": ("out", "in"),
    "reduce_scatter_into": ("out", "in"),
    "all_to_all_into": ("out",),
    "all_reduce": ("in",),
    "broadcast": ("in",),
}
"""Every operation with the places in which it works: another buffer, or its own."""

_DTYPE = torch.float32
_WARM_UP, _BURST, _BURSTS = 3, 16, 100

Body = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """One line of the table, in nccl-tests' columns.

    Attributes:
        size: Bytes of the larger buffer.
        count: Elements of it.
        type: Of its elements.
        time: Microseconds a call, of the slowest rank.
        algbw: size / time, in GB/s.
        busbw: What every link carries, in GB/s.
        op: The Communicator's method.
        backend: What moved the bytes.
        mode: ``eager``, or ``graph`` for replays of a captured CUDA graph.
        place: ``out`` or ``in`` place.
    """

    size: int
    count: int
    type: str
    time: float
    algbw: float
    busbw: float
    op: str
    backend: str
    mode: str
    place: str


def sizes(least: int, most: int) -> Iterator[int]:
    """Yield sizes in bytes, each four times the one before."""
    size = least
    while size <= most:
        yield size
        size *= 4


def time_call(comm: Communicator, op: str, size: int, place: str, mode: str, calls: int) -> Timing:
    """Time ``calls`` calls in a row; collective."""
    body, count = _body(comm, op, size, in_place=place == "in")
    for _ in range(_WARM_UP):
        body()
    timed = _captured(body, calls) if mode == "graph" else lambda: _repeat(body, calls)
    seconds = _slowest(comm, _elapsed(comm, timed) / calls)
    nbytes = count * _DTYPE.itemsize
    algbw = nbytes / seconds / 1e9
    busbw = algbw * _bus_factor(op, comm.size)
    type_ = str(_DTYPE).removeprefix("torch.")
    return Timing(nbytes, count, type_, seconds * 1e6, algbw, busbw, op, comm.backend, mode, place)


def enqueue_times(bodies: Mapping[str, Body]) -> dict[str, float]:
    """Microseconds for which one call of each holds the host: medians over short bursts.

    Bursts are short, and the GPU is idle before each, so that the host never waits for a queue.
    They take turns, so that what else this machine does meets all alike.
    """
    bursts: dict[str, list[float]] = {name: [] for name in bodies}
    for _ in range(_BURSTS):
        for name, body in bodies.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(_BURST):
                body()
            bursts[name].append(time.perf_counter() - started)
    torch.cuda.synchronize()
    return {name: median(times) / _BURST * 1e6 for name, times in bursts.items()}


def small_gather(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and input of a gather of 32 bytes a rank."""
    output = torch.zeros(comm.size, 8, dtype=_DTYPE, device=comm.device)
    return output, torch.zeros(8, dtype=_DTYPE, device=comm.device)


def _body(comm: Communicator, op: str, size: int, *, in_place: bool) -> tuple[Body, int]:
    """A call of about ``size`` bytes and how many elements it has."""
    block = max(1, size // _DTYPE.itemsize // comm.size)
    whole = torch.zeros(comm.size, block, dtype=_DTYPE, device=comm.device)
    slot = whole[comm.rank] if in_place else torch.zeros_like(whole[0])
    other = torch.empty_like(whole) if op == "all_to_all_into" else whole
    bodies: dict[str, Body] = {
        "all_gather_into": lambda: comm.all_gather_into(whole, slot),
        "reduce_scatter_into": lambda: comm.reduce_scatter_into(slot, whole),
        "all_to_all_into": lambda: comm.all_to_all_into(other, whole),
        "all_reduce": lambda: comm.all_reduce(whole, "max"),
        "broadcast": lambda: comm.broadcast(whole, 0),
    }
    return bodies[op], whole.numel()


def _repeat(body: Body, calls: int) -> None:
    for _ in range(calls):
        body()


def _captured(body: Body, calls: int) -> Body:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        _repeat(body, calls)
    graph.replay()
    return graph.replay


def _elapsed(comm: Communicator, timed: Body) -> float:
    """Seconds until the work is done, on this rank."""
    if comm.device.type == "cuda":
        torch.cuda.synchronize()
    comm.barrier()
    started = time.perf_counter()
    timed()
    if comm.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _slowest(comm: Communicator, seconds: float) -> float:
    worst = torch.tensor([seconds], dtype=torch.float64, device=comm.device)
    comm.all_reduce(worst, "max")
    return float(worst.item())


def _bus_factor(op: str, ranks: int) -> float:
    """nccl-tests' factors."""
    share = (ranks - 1) / ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0}.get(op, share)
