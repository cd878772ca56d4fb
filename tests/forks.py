"""Ranks forked from a server that has imported dcp_comm: a start costs milliseconds, not seconds.

The server is started at first use, once a test process. A forked rank ends by ``os._exit``: what
happens when an interpreter ends is for `tests.processes.Process`.
"""

import importlib
import multiprocessing
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing.connection import Connection
from typing import IO, cast

import torch

from tests.launches import to_the_end
from tests.processes import Process, Report, free_port, launcher_variables

_CONTEXT = multiprocessing.get_context("forkserver")
_modules = ["dcp_comm.backends.torch_distributed", "tests.faulty_forks"]
_CONTEXT.set_forkserver_preload(_modules)


def preload(module: str) -> None:
    """Have the server import one more module; to be called where tests are defined.

    The module must not have used a communicator or a thread by the time it is imported.
    """
    _modules.append(module)
    _CONTEXT.set_forkserver_preload(_modules)


@cache
def _await_server() -> None:
    """Have it import everything, on nobody's time."""
    first = _CONTEXT.Process(target=int)
    first.start()
    first.join()
    assert first.exitcode == 0


class _Child:
    """What `Process` needs of a `subprocess.Popen`, for a forked child."""

    def __init__(self, target: str, variables: Mapping[str, str], errors: str) -> None:
        _await_server()
        reader, writer = _CONTEXT.Pipe(duplex=False)
        body = (target, dict(variables), writer, errors)
        self._process = _CONTEXT.Process(target=_body, args=body, daemon=True)
        self._process.start()
        writer.close()
        self.stdout: IO[bytes] = os.fdopen(os.dup(reader.fileno()), "rb")
        reader.close()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("forked rank", timeout or 0.0)
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()


class Forked(Process):
    """A forked process that runs ``module:function`` and reports."""

    def _start(self, command: list[str], variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        child = _Child(command[0], variables, self._errors.name)
        return cast("subprocess.Popen[bytes]", child)


@contextmanager
def forked(target: str, size: int, **variables: str) -> Iterator[list[Process]]:
    """Start every rank of ``module:function``; kill what is left at the end."""
    port = free_port()
    with ExitStack() as stack:
        started: list[Process] = []
        for rank in range(size):
            environment = {**launcher_variables(rank, size, port), **variables}
            started.append(Forked([target], environment))
            stack.callback(started[-1].end)
        yield started


def reports(module: str, size: int, seconds: float = 90.0) -> dict[str, list[Report]]:
    """Run a module's ``main`` to its end on every rank; each topic's reports in rank order.

    As `tests.launches.reports`, where how the processes end is of no interest.
    """
    with forked(f"{module}:main", size) as ranks:
        return to_the_end(ranks, seconds)


def _body(target: str, variables: dict[str, str], reports: Connection, errors: str) -> None:
    """The child: its reports go where `tests.processes.report` writes them."""
    os.dup2(reports.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    reports.close()
    os.environ.update(variables)
    torch.set_num_threads(1)  # all ranks share the machine's cores
    module, _, function = target.partition(":")
    getattr(importlib.import_module(module), function)()
