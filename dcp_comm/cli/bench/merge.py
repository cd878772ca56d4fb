"""Time every stage of a merge on one device, or whole merges between ranks.

Alone, one device holds the parts of ``--size`` ranks, and each stage is timed by itself with the
bytes it must move and its share of the copy bandwidth of the same run; beside the route that
engines run today, built from torch's operations. With ``--ranks N``, or under torchrun, every rank
is a process: whole merges by route, eager and replayed from a CUDA graph, collectives by size,
memory, and the rival that splits the query rows. Everything is compared with a plain stable sort
before it is timed; a wrong row ends the run without a report.
"""

import argparse
import os
from dataclasses import asdict
from pathlib import Path

import torch

from dcp_comm.cli import drawing, sharing
from dcp_comm.cli.bench import alone, launched, pictures, ranks, wanted
from dcp_comm.cli.bench.report import Report
from dcp_comm.cli.options import UsageError, whole
from dcp_comm.cli.relaunch import is_launched, relaunch
from dcp_comm.cli.table import as_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add = parser.add_argument
    wanted.add_arguments(parser)
    add("--ranks", type=whole(1, 64), metavar="N", help="processes to start (default: none)")
    add("--backends", metavar="NAMES", help="of a launch, by comma; merges go over the first")
    add("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    add("--json", metavar="FILE", type=Path, help="write everything as JSON")
    add("--plot", metavar="FILE", help="draw time over rows; the name says the format")
    sharing.add_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Time, print the tables, and write what was asked for.

    Raises:
        UsageError: The options cannot be served.
        WrongRows: Something is wrong; nothing is reported.
    """
    _unless_writable(arguments)
    if arguments.ranks and not is_launched():
        return relaunch(arguments.argv, arguments.ranks)
    report = _launched(arguments) if is_launched() else _alone(arguments)
    if report is None:
        return 0
    print(report.text(), flush=True)
    if arguments.json:
        arguments.json.write_text(as_json(report.to_dict()) + "\n")
    if arguments.plot:
        pictures.draw(arguments.plot, report)
    return 0


def _unless_writable(arguments: argparse.Namespace) -> None:
    """Refuse now what could not be written after minutes of measuring."""
    if arguments.plot:
        drawing.figure("bench merge", 1, 1)
    for name in ("json", "plot"):
        path = getattr(arguments, name)
        if path and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"--{name}: {path} is in no folder that exists. Make it first")


def _alone(arguments: argparse.Namespace) -> Report:
    device = torch.device("cuda", torch.cuda.current_device()) if _on_gpu(arguments) else _CPU
    asked = wanted.wanted(arguments, device)
    return _with_options(alone.run(asked, device), asked)


def _launched(arguments: argparse.Namespace) -> Report | None:
    """Be a rank; rank 0 reports for all."""
    if arguments.ranks not in {None, int(os.environ["WORLD_SIZE"])}:
        raise UsageError(
            f"--ranks: the launcher started {os.environ['WORLD_SIZE']}; leave --ranks out"
        )
    if arguments.share_gpus:
        sharing.share_gpus()
    device = launched.own_gpu() if _on_gpu(arguments) else _CPU
    asked = wanted.wanted(arguments, device)
    report = ranks.run(asked, device, launched.backends(arguments.backends, device))
    if arguments.share_gpus:
        report.left_out.append(sharing.NOTE)
    return _with_options(report, asked) if os.environ["RANK"] == "0" else None


def _with_options(report: Report, asked: wanted.Wanted) -> Report:
    report.options = asdict(asked)
    return report


def _on_gpu(arguments: argparse.Namespace) -> bool:
    return torch.cuda.is_available() and arguments.device != "cpu"


_CPU = torch.device("cpu")
