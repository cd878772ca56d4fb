"""What ``dcp-comm plan --model`` says of a whole model: reservations by owner, rivals, gains."""

import argparse
from collections.abc import Iterator

import torch

from dcp_comm import footprint
from dcp_comm.budget import SEED_ROWS, Budget, Design, Gain, budget
from dcp_comm.cli.options import UsageError, whole
from dcp_comm.cli.table import both, table
from dcp_comm.launch import init
from dcp_comm.topk.cost import KEY_BYTES

_MIB = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that a whole model needs beside those of a plan."""
    count, add = whole(1), parser.add_argument
    add("--requests", type=count, default=32, help="most requests of a step (default 32)")
    add("--max-model-len", type=count, default=786_432, help="tokens a request (default 786432)")
    add("--next-n", type=count, default=1, help="rows a request in decode (default 1)")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--communicator",
        type=whole(0),
        metavar="MIB",
        help="MiB of a communicator of our own; 0 where the engine's is adopted (default "
        f"{footprint.MEASURED_BYTES // _MIB}, as measured)",
    )
    kinds.add_argument(
        "--measure", action="store_true", help="make one and measure it; under torchrun, on GPUs"
    )


def of(arguments: argparse.Namespace, communicator: int) -> Budget:
    """Return the budget that the options ask for."""
    return budget(
        arguments.model,
        arguments.size,
        query_rows=arguments.rows,
        requests=arguments.requests,
        max_model_len=arguments.max_model_len,
        next_n=arguments.next_n,
        communicator=communicator,
        memory=arguments.memory,
        utilization=arguments.utilization,
        weights=arguments.weights,
    )


def communicator_bytes(arguments: argparse.Namespace) -> tuple[int, int]:
    """Return what a communicator takes, and this rank's number, 0 without a launcher.

    Raises:
        UsageError: There is no model to count it for.
        CommUsageError: It is to be measured, and no launcher started this.
    """
    if arguments.model is None and (arguments.measure or arguments.communicator is not None):
        raise UsageError("--measure and --communicator: for a whole model, so give --model too")
    if arguments.measure:
        rows = min(arguments.rows, SEED_ROWS)
        return _measured(arguments.size * KEY_BYTES * arguments.k * rows)
    given = arguments.communicator
    return (footprint.MEASURED_BYTES if given is None else given * _MIB), 0


def _measured(message: int) -> tuple[int, int]:
    """Make a communicator, prepare it for messages of so many bytes, and return what is gone."""
    with init() as comm:
        comm.prepare(message)
        most = torch.tensor(comm.footprint.nbytes, device=comm.device)
        comm.all_reduce(most, "max")
        return int(most), comm.rank


def sections(found: Budget) -> Iterator[str]:
    """Yield the parts of the answer."""
    limits = found.limits
    head = (
        f"A rank of {found.size} that serves {found.model.name}: {limits.query_rows:,} rows a step,"
        f" {limits.requests} requests of up to {limits.max_model_len:,} tokens"
    )
    owners = tuple(found.designs[0].reserved)
    header = ("index", "merge", *owners, "communicator", "in all", "bytes a token", "tokens")
    rows = [_design(each, found.designs[0]) for each in found.designs]
    yield f"{head}\n{table(header, rows, left=2)}\n" + _words(found)
    yield (
        f"Tokens gained by our scratch against the published {both(found.gains[0].published_bytes)}"
        " of 1,024-row chunks\n"
        + table(
            ("merge", "chunk rows", "scratch", "communicator adopted", "of our own"),
            [_gain(each) for each in found.gains],
        )
    )


def _words(found: Budget) -> str:
    return (
        "vllm is the published merge over the engine's communicator. The owners share one "
        "workspace, so that the\nlargest counts. Attention is an LSE merge of bfloat16 outputs, "
        "1,024 rows at a time. Tokens: that fit\n(--memory), else that scratch and communicator "
        "take. Replicated keys cost every token; split rows still\nmerge in decode, and gather "
        f"all keys of a request in prefill.\n{footprint.MEASURED}.\n"
        f"{found.model.name}: {found.model.source}"
    )


def _design(design: Design, first: Design) -> tuple[str, ...]:
    if design.tokens is None:
        tokens = f"-{design.nbytes / design.token_bytes:,.0f}"
    else:
        tokens = f"{design.tokens:,} ({design.tokens - (first.tokens or 0):+,})"
    return (
        design.name,
        design.merge or "-",
        *(f"{nbytes / _MIB:,.1f} MiB" for nbytes in design.reserved.values()),
        f"{design.communicator / _MIB:,.0f} MiB",
        f"{design.nbytes / _MIB:,.1f} MiB",
        f"{design.token_bytes:,.0f}",
        tokens,
    )


def _gain(gain: Gain) -> tuple[str, ...]:
    scratch = both(gain.scratch_bytes)
    return gain.merge, f"{gain.chunk_rows:,}", scratch, f"{gain.adopted:+,}", f"{gain.own:+,}"
