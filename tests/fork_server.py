"""Ranks forked from a server that has imported everything: a start costs milliseconds, not seconds.

The server is started at first use, once a test process. A forked rank ends by ``os._exit``: what
happens when an interpreter ends is for `tests.processes.Process`.
"""

import importlib
import multiprocessing
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import IO, cast

from tests.processes import Process, free_port, launcher_variables

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["dcp_comm.backends.torch_distributed", "tests.faulty_forks"])


class _Child:
    """What `Process` needs of a `subprocess.Popen`, for a forked child."""

    def __init__(self, target: str, variables: Mapping[str, str], errors: str) -> None:
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


def _body(target: str, variables: dict[str, str], reports: Connection, errors: str) -> None:
    """The child: its reports go where `tests.processes.report` writes them."""
    os.dup2(reports.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), 2)
    reports.close()
    os.environ.update(variables)
    module, _, function = target.partition(":")
    getattr(importlib.import_module(module), function)()
