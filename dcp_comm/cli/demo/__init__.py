"""Index a real text on several ranks: exact top-K in reserved memory, beside published mistakes.

Starts itself under torchrun. The report goes to stdout, progress to stderr. Exits with 1 if a
single row of ours differs from the plain answer.
"""

import argparse
import os
import sys
from time import perf_counter

from dcp_comm.cli.demo import report
from dcp_comm.cli.demo.acts import Progress, open_book, perform
from dcp_comm.cli.demo.mistakes import MISTAKES
from dcp_comm.cli.demo.outcome import Options
from dcp_comm.cli.options import UsageError, fraction, whole
from dcp_comm.cli.relaunch import is_launched, relaunch
from dcp_comm.cli.table import as_json
from dcp_comm.launch import init
from dcp_comm.registry import load, require_known
from dcp_comm.settings import Settings

_RANKS = 4
_TIMEOUT = 300.0  # seconds; ranks wait for one another while each answers its share of the rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    default = Options()
    add = parser.add_argument
    add("--ranks", type=whole(2, 64), metavar="N", help=f"ranks to start (default: {_RANKS})")
    add("--k", type=whole(1), default=default.k, help="winners a row (default: %(default)s)")
    add(
        "--interleave",
        type=whole(1, 2**20),
        default=default.interleave,
        metavar="N",
        help="tokens dealt to a rank at a time (default: %(default)s)",
    )
    add(
        "--rows",
        type=whole(16),
        default=default.rows,
        metavar="N",
        help="query rows from the text (default: %(default)s)",
    )
    add("--text", metavar="FILE", help="text to index (default: Python's topics)")
    add(
        "--needle-depth",
        type=fraction,
        default=default.needle_depth,
        metavar="X",
        help="where the needle is hidden, 0 front, 1 end (default: %(default)s)",
    )
    add("--backend", default="auto", help="what moves the bytes (default: %(default)s)")
    add(
        "--break",
        dest="broken",
        choices=tuple(MISTAKES),
        metavar="NAME",
        help="put one mistake into our own way, to see the demo fail: " + ", ".join(MISTAKES),
    )
    add("--json", action="store_true", help="print the outcome as JSON, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Start the ranks; or be one of them, and report if it is rank 0."""
    options = Options(
        k=arguments.k,
        interleave=arguments.interleave,
        needle_depth=arguments.needle_depth,
        rows=arguments.rows,
        text=arguments.text,
        broken=arguments.broken,
    )
    if is_launched():
        return _be_a_rank(options, arguments)
    _refuse_early(options, arguments.backend)
    return relaunch(arguments.argv, arguments.ranks or _RANKS)


def _refuse_early(options: Options, backend: str) -> None:
    """Say once, before any rank starts, what every rank would say."""
    Settings.from_environment()
    if backend != "auto":
        require_known(backend)
    open_book(options)


def _be_a_rank(options: Options, arguments: argparse.Namespace) -> int:
    size = int(os.environ["WORLD_SIZE"])
    if size < 2 or arguments.ranks not in {None, size}:
        raise UsageError(
            f"--ranks: the launcher started {size}; start at least 2, and leave --ranks out"
        )
    with init(arguments.backend, _device(arguments.backend), timeout=_TIMEOUT) as comm:
        outcome = perform(comm, options, _progress(speaks=comm.rank == 0))
        if comm.rank == 0:
            print(as_json(report.as_fields(outcome)) if arguments.json else report.as_text(outcome))
            print(report.last_words(outcome), file=sys.stderr if arguments.json else sys.stdout)
            sys.stdout.flush()
        comm.barrier()
    return 1 if outcome.failures else 0


def _device(backend: str) -> str | None:
    """Return the CPU, so that any machine will do; None, the rank's GPU, for a backend without."""
    on_cpu = backend == "auto" or "cpu" in load(backend).capabilities.devices
    return "cpu" if on_cpu else None


def _progress(*, speaks: bool) -> Progress:
    started = perf_counter()

    def say(what: str) -> None:
        if speaks:
            print(f"[{perf_counter() - started:5.1f} s] {what}", file=sys.stderr, flush=True)

    return say
