"""Check the rules of a communicator, and that merges are exact, on a real launch.

Starts itself under torchrun; or joins the launch that it is part of, on any number of machines:
``torchrun --nproc-per-node 4 -m dcp_comm verify``. The rules are those of the conformance suite.
The merges of every strategy are compared with a plain stable sort of whole rows. Exits with 1 if
something does not hold.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter

import torch

from dcp_comm.cli import sharing
from dcp_comm.cli.options import UsageError, whole
from dcp_comm.cli.relaunch import is_launched, relaunch
from dcp_comm.cli.table import as_json, table
from dcp_comm.communicator import Communicator
from dcp_comm.deadline import seconds
from dcp_comm.errors import CommArgumentError, DcpCommError
from dcp_comm.launch import init
from dcp_comm.registry import require_known
from dcp_comm.testing.conformance import CHECKS, CheckResult, run_check
from dcp_comm.testing.exactness import wrong_rows
from dcp_comm.topk.choice import STRATEGIES

MERGES = {f"{strategy}_merges_exactly": strategy for strategy in STRATEGIES}
NAMES = (*CHECKS, *MERGES)

_RANKS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    add("--backend", default="auto", metavar="NAME", help="what moves the bytes (default: auto)")
    add("--ranks", type=whole(1, 64), metavar="N", help=f"ranks to start (default: {_RANKS})")
    add("--checks", type=_names, default=NAMES, metavar="NAMES", help="only these, by comma")
    add(
        "--timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds that one call may wait for other ranks (default: %(default)g)",
    )
    add("--json", action="store_true", help="print JSON")
    sharing.add_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Start the ranks; or be one of them, and report if it is rank 0."""
    _unless_known(arguments.backend)
    if is_launched():
        return _be_a_rank(arguments)
    return relaunch(arguments.argv, arguments.ranks or _RANKS)


def verify(comm: Communicator, names: Sequence[str]) -> list[CheckResult]:
    """Run checks of `NAMES` one after another; collective, with the same verdicts on every rank."""
    return [run_check(comm, name) if name in CHECKS else _run_merge(comm, name) for name in names]


def as_text(comm: Communicator, results: Sequence[CheckResult]) -> str:
    """Return the table, with a line about where it was made and one that sums up."""
    rows = [
        (each.name, "yes" if each.ok else "NO", f"{each.seconds:.3f}", _one_line(each.detail))
        for each in results
    ]
    held = sum(each.ok for each in results)
    return (
        f"backend {comm.backend}, {comm.size} ranks, {comm.device}\n\n"
        f"{table(('check', 'ok', 'seconds', 'detail'), rows, left=4)}\n\n"
        f"{held} of {len(results)} hold"
    )


def as_fields(comm: Communicator, results: Sequence[CheckResult]) -> dict[str, object]:
    """Return the same for JSON."""
    return {
        "backend": comm.backend,
        "ranks": comm.size,
        "device": str(comm.device),
        "ok": all(each.ok for each in results),
        "checks": [asdict(each) for each in results],
    }


def _be_a_rank(arguments: argparse.Namespace) -> int:
    if arguments.ranks not in {None, int(os.environ["WORLD_SIZE"])}:
        raise UsageError(
            f"--ranks: the launcher started {os.environ['WORLD_SIZE']}; leave --ranks out"
        )
    if arguments.share_gpus:
        sharing.share_gpus()
    with init(arguments.backend, timeout=arguments.timeout) as comm:
        if comm.device.type == "cuda":
            torch.cuda.set_device(comm.device)
        results = verify(comm, arguments.checks)
        if comm.rank == 0:
            shown = as_json(as_fields(comm, results)) if arguments.json else as_text(comm, results)
            print(shown, flush=True)
            if arguments.share_gpus:
                print(sharing.NOTE, file=sys.stderr)
    return 0 if all(each.ok for each in results) else 1


def _run_merge(comm: Communicator, name: str) -> CheckResult:
    """Compare one strategy's merges with the plain answer, as `run_check` does with a rule."""
    started = perf_counter()
    try:
        wrong = wrong_rows(comm, MERGES[name])
        detail = f"{wrong} rows differ from a plain sort" if wrong else ""
    except DcpCommError as error:
        detail = f"{comm.where}: {type(error).__name__}: {error}"
    return CheckResult(name, not detail, perf_counter() - started, detail)


def _unless_known(backend: str) -> None:
    try:
        if backend != "auto":
            require_known(backend)
    except CommArgumentError as error:
        raise UsageError(f"--backend: {error}") from error


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in NAMES:
            nearest = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
            raise argparse.ArgumentTypeError(f"{name!r} is no check; the nearest is {nearest!r}")
    return names


def _seconds(text: str) -> float:
    try:
        return seconds(float(text), "verify", "--timeout")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0") from error


def _one_line(detail: str) -> str:
    return "; ".join(detail.splitlines())
