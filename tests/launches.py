"""Launches of a module of tests on real ranks; the module reports with `tests.processes.report`."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.processes import Process, Report, free_port, launcher_variables


@contextmanager
def launch(module: str, size: int) -> Iterator[list[Process]]:
    """Start ``python -m module`` on every rank; kill what is left at the end."""
    port, command = free_port(), [sys.executable, "-m", module]
    with ExitStack() as stack:
        started = []
        for rank in range(size):
            started.append(Process(command, launcher_variables(rank, size, port)))
            stack.callback(started[-1].end)
        yield started


def reports(module: str, size: int) -> dict[str, list[Report]]:
    """Run a module to its end on every rank; each topic's reports in rank order.

    Raises:
        AssertionError: A rank did not end by itself with exit code 0.
    """
    with launch(module, size) as ranks:
        told = [{each["topic"]: each for each in rank.rest(90.0)} for rank in ranks]
        for rank in ranks:
            assert rank.wait() == 0, rank.errors()
    return {topic: [each[topic] for each in told] for topic in told[0]}
