"""Ranks that fork from one process, so that what a module imports is imported once.

``python -m tests.forks MODULE SIZE`` runs ``MODULE.main()`` on every rank. The module must not have
used a communicator, a GPU or a thread by the time it is imported.
"""

import importlib
import os
import sys
import traceback
from collections.abc import Callable

from tests.processes import Process, Report, free_port, launcher_variables


def reports(module: str, size: int, seconds: float = 90.0) -> dict[str, list[Report]]:
    """Run a module to its end on every rank; each topic's reports in rank order.

    Raises:
        AssertionError: A rank did not end by itself with exit code 0.
    """
    command = [sys.executable, "-m", "tests.forks", module, f"{size}"]
    process = Process(command, {**launcher_variables(0, size, free_port()), "OMP_NUM_THREADS": "1"})
    try:
        told = sorted(process.rest(seconds), key=lambda each: int(each["rank"]))
        assert process.wait() == 0, process.errors()
    finally:
        process.end()
    topics = dict.fromkeys(each["topic"] for each in told)
    return {topic: [each for each in told if each["topic"] == topic] for topic in topics}


def fork(main: Callable[[], None], rank: int) -> int:
    """Start a rank; returns its process id."""
    child = os.fork()
    if child:
        return child
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank}")
    try:
        main()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    body = importlib.import_module(sys.argv[1]).main
    children = [fork(body, rank) for rank in range(int(sys.argv[2]))]
    codes = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(any(codes))
