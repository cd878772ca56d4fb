"""``dcp-comm``: what can be tried, checked and measured without writing code.

Each command is a module of this package with ``add_arguments(parser)`` and
``run(arguments) -> int``; the first line of its docstring is its help. ``arguments.argv`` holds
the words that came, for a command that starts itself again under a launcher.

Exit codes: 0 fine, 1 failed, 2 wrong usage, 3 the backend cannot work here.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from dcp_comm import __version__
from dcp_comm.cli.command import add_commands
from dcp_comm.cli.options import UsageError
from dcp_comm.errors import (
    BackendUnavailable,
    CommMismatch,
    CommPeerLost,
    CommTimeout,
    DcpCommError,
)

COMMANDS = ("bench", "demo", "doctor", "plan", "trace", "verify")

FAILED, USAGE, UNAVAILABLE = 1, 2, 3

_SHARED = (BackendUnavailable, CommMismatch, CommPeerLost, CommTimeout)
"""Errors that every rank raises together: rank 0 speaks for all."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: The words after ``dcp-comm``; None for this process's own.

    Raises:
        SystemExit: For ``--help`` and ``--version``, and with code 2 for options that do not parse.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = _parser().parse_args(words)
    arguments.argv = words
    try:
        return int(arguments.command(arguments))
    except UsageError as error:
        return _say(error, USAGE)
    except BackendUnavailable as error:
        return _say(error, UNAVAILABLE)
    except DcpCommError as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dcp-comm", description="Exact global top-K across ranks, in memory you reserved."
    )
    parser.add_argument("--version", action="version", version=f"dcp-comm {__version__}")
    add_commands(parser, __name__, COMMANDS, "command")
    return parser


def _say(error: Exception, code: int) -> int:
    """Tell the error once: what all ranks share is told by rank 0 alone."""
    rank = os.environ.get("RANK", "0")
    if rank == "0" or not isinstance(error, (UsageError, *_SHARED)):
        print(f"dcp-comm: {error}", file=sys.stderr, flush=True)
    return code
