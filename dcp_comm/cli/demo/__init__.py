"""Index a real text on several ranks: exact top-K in reserved memory, beside published mistakes.

Starts itself under torchrun. The report goes to stdout, progress to stderr. Exits with 1 if a
single row of ours differs from the plain answer. With --model, whole models of HF transformers
(DeepSeek-V3.2, GLM DSA) instead: their own forward against the same with sharded attention.
"""

import argparse
import os
import sys
from time import perf_counter

from dcp_comm.cli.demo import acts, model, report
from dcp_comm.cli.demo.acts import Progress, open_book
from dcp_comm.cli.demo.mistakes import MISTAKES
from dcp_comm.cli.demo.model import ModelOptions
from dcp_comm.cli.demo.model_mistakes import MODEL_MISTAKES
from dcp_comm.cli.demo.outcome import Options, Page
from dcp_comm.cli.options import UsageError, fraction, whole
from dcp_comm.cli.relaunch import is_launched, relaunch
from dcp_comm.cli.table import as_json
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommUsageError
from dcp_comm.launch import init
from dcp_comm.registry import load, require_known
from dcp_comm.settings import Settings
from dcp_comm.testing.models import require_transformers

_RANKS = 4
_MODEL_RANKS = 2, 4
_TIMEOUT = 300.0  # seconds; ranks wait for one another while each answers its share of the rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    default = Options()
    add = parser.add_argument
    add("--model", action="store_true", help="compare whole models; needs transformers")
    ranks = f"ranks to start (default: {_RANKS}; with --model {_MODEL_RANKS[0]})"
    add("--ranks", type=whole(2, 64), metavar="N", help=ranks)
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
        choices=tuple({**MISTAKES, **MODEL_MISTAKES}),
        metavar="NAME",
        help="put one mistake into our own way, to see the demo fail: "
        f"{', '.join(MISTAKES)}; with --model {', '.join(MODEL_MISTAKES)}",
    )
    add("--json", action="store_true", help="print the outcome as JSON, and nothing else")


def run(arguments: argparse.Namespace) -> int:
    """Start the ranks; or be one of them, and report if it is rank 0."""
    options = _model_options(arguments) if arguments.model else _options(arguments)
    if is_launched():
        return _be_a_rank(options, arguments)
    _refuse_early(options, arguments.backend)
    usual = _MODEL_RANKS[0] if arguments.model else _RANKS
    return relaunch(arguments.argv, arguments.ranks or usual)


def _options(arguments: argparse.Namespace) -> Options:
    if arguments.broken not in {None, *MISTAKES}:
        raise UsageError(f"--break: {arguments.broken} is a mistake of --model. Add that")
    return Options(
        k=arguments.k,
        interleave=arguments.interleave,
        needle_depth=arguments.needle_depth,
        rows=arguments.rows,
        text=arguments.text,
        broken=arguments.broken,
    )


def _model_options(arguments: argparse.Namespace) -> ModelOptions:
    """Refuse what models have no use for, and ranks over which their heads do not deal."""
    default = Options()
    for name in ("k", "rows", "text", "needle_depth"):
        if getattr(arguments, name) != getattr(default, name):
            raise UsageError(f"--{name.replace('_', '-')}: not with --model. Leave one of them out")
    if arguments.broken not in {None, *MODEL_MISTAKES}:
        raise UsageError(f"--break: {arguments.broken} is no mistake of --model. Leave that out")
    if arguments.ranks not in {None, *_MODEL_RANKS}:
        raise UsageError(f"--ranks: {arguments.ranks} do not divide the models' heads. Take 2 or 4")
    return ModelOptions(arguments.interleave, arguments.broken)


def _refuse_early(options: Options | ModelOptions, backend: str) -> None:
    """Say once, before any rank starts, what every rank would say."""
    Settings.from_environment()
    if backend != "auto":
        require_known(backend)
    if isinstance(options, Options):
        open_book(options)
        return
    try:
        require_transformers()
    except CommUsageError as error:
        raise UsageError(f"--model: {error}") from None


def _be_a_rank(options: Options | ModelOptions, arguments: argparse.Namespace) -> int:
    size = int(os.environ["WORLD_SIZE"])
    if size < 2 or arguments.ranks not in {None, size}:
        raise UsageError(
            f"--ranks: the launcher started {size}; start at least 2, and leave --ranks out"
        )
    with init(arguments.backend, _device(arguments.backend), timeout=_TIMEOUT) as comm:
        page = _performed(comm, options, _progress(speaks=comm.rank == 0))
        if comm.rank == 0:
            print(as_json(page.fields) if arguments.json else page.text)
            print(page.verdict, file=sys.stderr if arguments.json else sys.stdout)
            sys.stdout.flush()
        comm.barrier()
    return 1 if page.failures else 0


def _performed(comm: Communicator, options: Options | ModelOptions, progress: Progress) -> Page:
    """Run what was asked for; collective."""
    if isinstance(options, ModelOptions):
        return model.page(model.perform(comm, options, progress))
    return report.page(acts.perform(comm, options, progress))


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
