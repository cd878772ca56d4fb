"""Launches of a module of tests on real ranks; the module reports with `tests.processes.report`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tests.processes import Process, Report, free_port, launcher_variables


def as_launched(_: int) -> dict[str, str]:
    """Nothing on top of what a launcher sets."""
    return {}


@contextmanager
def launch(
    module: str,
    size: int,
    *words: str,
    environment: Callable[[int], dict[str, str]] = as_launched,
) -> Iterator[list[Process]]:
    """Start ``python -m module words`` on every rank; kill what is left at the end."""
    port, command = free_port(), [sys.executable, "-m", module, *words]
    with ExitStack() as stack:
        started = []
        for rank in range(size):
            variables = {**launcher_variables(rank, size, port), **environment(rank)}
            started.append(Process(command, variables))
            stack.callback(started[-1].end)
        yield started


def reports(
    module: str,
    size: int,
    *words: str,
    seconds: float = 90.0,
    environment: Callable[[int], dict[str, str]] = as_launched,
) -> dict[str, list[Report]]:
    """Run a module to its end on every rank; each topic's reports in rank order.

    No rank stays silent for longer than ``seconds``.

    Raises:
        AssertionError: A rank did not end by itself with exit code 0.
    """
    with launch(module, size, *words, environment=environment) as ranks:
        return to_the_end(ranks, seconds)


def to_the_end(ranks: list[Process], seconds: float) -> dict[str, list[Report]]:
    """Each topic's reports in rank order, of ranks that all end well.

    Raises:
        AssertionError: A rank did not end by itself with exit code 0.
    """
    told = [{each["topic"]: each for each in rank.rest(seconds)} for rank in ranks]
    for rank in ranks:
        assert rank.wait() == 0, rank.errors()
    return {topic: [each[topic] for each in told] for topic in told[0]}
