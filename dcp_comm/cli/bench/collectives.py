"""Time collectives through every backend, eager and replayed from a CUDA graph.

Starts itself under torchrun; or joins the launch that it is part of, on any number of machines:
``torchrun --nproc-per-node 4 -m dcp_comm bench collectives``. Prints the columns of nccl-tests; on
GPUs also for how long one call holds the host, beside torch.distributed's own call.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial

import torch
import torch.distributed as dist

from dcp_comm.cli import sharing
from dcp_comm.cli.bench.calls import (
    PLACES,
    Body,
    Timing,
    enqueue_times,
    sizes,
    small_gather,
    time_call,
)
from dcp_comm.cli.bench.launched import backends, connect, own_gpu
from dcp_comm.cli.options import UsageError, whole
from dcp_comm.cli.relaunch import is_launched, relaunch
from dcp_comm.cli.table import as_json, size, table
from dcp_comm.communicator import Communicator

_RANKS = 2
_ITSELF = "torch.distributed itself"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--backends", metavar="NAMES", help="only these, by comma (default: all that work here)")
    add("--ops", metavar="NAMES", default=",".join(PLACES), help="only these, by comma")
    add("--min-bytes", type=whole(4), default=1 << 10, metavar="N", help="smallest (default 1 KiB)")
    add("--max-bytes", type=whole(4), default=1 << 24, metavar="N", help="largest (default 16 MiB)")
    add("--calls", type=whole(1), default=20, metavar="N", help="calls a timing (default 20)")
    add("--ranks", type=whole(1, 64), metavar="N", help=f"ranks to start (default: {_RANKS})")
    add("--device", choices=("cpu", "cuda"), help="default: GPUs where there are any")
    add("--json", action="store_true", help="print JSON")
    sharing.add_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Start the ranks; or be one of them, and report if it is rank 0."""
    for name in arguments.ops.split(","):
        if name not in PLACES:
            raise UsageError(f"--ops: {name!r} is none of {', '.join(PLACES)}")
    if not is_launched():
        return relaunch(arguments.argv, arguments.ranks or _RANKS)
    if arguments.share_gpus:
        sharing.share_gpus()
    on_gpu = torch.cuda.is_available() and arguments.device != "cpu"
    device = own_gpu() if on_gpu else torch.device("cpu")
    names = backends(arguments.backends, device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        _measure(arguments, names, device)
    finally:
        dist.destroy_process_group()
    return 0


def _measure(arguments: argparse.Namespace, names: list[str], device: torch.device) -> None:
    timings: list[Timing] = []
    with ExitStack() as stack:
        comms = []
        for name in names:
            comms.append(stack.enter_context(connect(name, device)))
            comms[-1].prepare(arguments.max_bytes)
            timings += _timings(arguments, comms[-1])
        costs = enqueue_times(_gathers(comms)) if device.type == "cuda" else {}
    if os.environ["RANK"] == "0":
        memory = {comm.backend: comm.footprint.nbytes for comm in comms}
        note = sharing.NOTE if arguments.share_gpus else ""
        show = _as_json if arguments.json else _text
        print(show(timings, costs, memory, note), flush=True)


def _timings(arguments: argparse.Namespace, comm: Communicator) -> Iterator[Timing]:
    modes = ("eager", "graph") if comm.device.type == "cuda" else ("eager",)
    for op in arguments.ops.split(","):
        for place in PLACES[op]:
            for mode in modes:
                for nbytes in sizes(arguments.min_bytes, arguments.max_bytes):
                    yield time_call(comm, op, nbytes, place, mode, arguments.calls)


def _gathers(comms: list[Communicator]) -> dict[str, Body]:
    """A gather of 32 bytes a rank through each backend, and through torch.distributed itself."""
    bodies: dict[str, Body] = {}
    for comm in comms:
        bodies[comm.backend] = partial(comm.all_gather_into, *small_gather(comm))
    # The name that torch 2.13 gave it, or the one of before.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    output, input = small_gather(comms[0])
    bodies[_ITSELF] = partial(gather, output.view(-1), input)
    return bodies


def _text(timings: list[Timing], costs: dict[str, float], memory: dict[str, int], note: str) -> str:
    rows = [
        (
            each.op,
            each.backend,
            each.mode,
            each.place,
            f"{each.size}",
            f"{each.count}",
            each.type,
            f"{each.time:.1f}",
            f"{each.algbw:.2f}",
            f"{each.busbw:.2f}",
        )
        for each in timings
    ]
    units = ("size (B)", "count", "type", "time (us)", "algbw (GB/s)", "busbw (GB/s)")
    parts = [note, table(("op", "backend", "mode", "place", *units), rows, left=4)]
    if costs:
        held = [(name, f"{cost:.1f}") for name, cost in costs.items()]
        parts.append(table(("all_gather_into of 32 bytes holds the host", "us"), held))
        taken = [(name, size(nbytes)) for name, nbytes in memory.items()]
        parts.append(table(("connected and prepared", "GPU memory outside torch's"), taken))
    return "\n\n".join(filter(None, parts))


def _as_json(
    timings: list[Timing], costs: dict[str, float], memory: dict[str, int], note: str
) -> str:
    rows = [asdict(timing) for timing in timings]
    return as_json({"note": note, "timings": rows, "host_us": costs, "gpu_bytes": memory})
