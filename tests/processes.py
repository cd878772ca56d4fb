"""Real processes for tests: ranks that run a function of `tests.scenarios` and report in JSON."""

import importlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

Report = dict[str, Any]


def with_path(*folders: Path) -> dict[str, str]:
    """Make a child process import from folders first, then from where this one does."""
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), str(ROOT), *filter(None, sys.path)])}


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def launcher_variables(rank: int, size: int, port: int) -> dict[str, str]:
    """What a plain launcher sets."""
    return {
        "RANK": f"{rank}",
        "LOCAL_RANK": f"{rank}",
        "WORLD_SIZE": f"{size}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
    }


def report(**fields: object) -> None:
    """Tell the test something, from inside a scenario."""
    line = json.dumps({"rank": int(os.environ["RANK"]), "at": time.monotonic(), **fields})
    os.write(1, f"{line}\n".encode())


def of_topic(reports: list[Report], topic: str) -> Report:
    """The one report about it."""
    (found,) = (each for each in reports if each["topic"] == topic)
    return found


class Process:
    """A process that reports."""

    def __init__(self, command: list[str], variables: Mapping[str, str]) -> None:
        self._errors = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._reports: queue.Queue[Report | None] = queue.Queue()
        self._process = self._start(command, variables)
        threading.Thread(target=self._read, daemon=True).start()

    def _start(self, command: list[str], variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **with_path(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._reports.put(json.loads(line))
        self._reports.put(None)

    def next(self, timeout: float = 40.0) -> Report:
        """The next report."""
        try:
            found = self._reports.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"no report within {timeout} s\n{self.errors()}") from None
        assert found is not None, f"ended instead of reporting\n{self.errors()}"
        return found

    def stream(self, timeout: float = 40.0) -> Iterator[Report]:
        """Reports as they come, to the end."""
        while (each := self._reports.get(timeout=timeout)) is not None:
            yield each

    def rest(self, timeout: float = 40.0) -> list[Report]:
        """All reports to the end."""
        return list(self.stream(timeout))

    def wait(self, timeout: float = 20.0) -> int:
        """The exit code."""
        return self._process.wait(timeout)

    def signal(self, number: int) -> float:
        """Send a signal; returns when."""
        self._process.send_signal(number)
        return time.monotonic()

    def errors(self) -> str:
        """What it wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def end(self) -> None:
        """Kill it if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._errors.close()


@contextmanager
def ranks(scenario: str, size: int, **variables: str) -> Iterator[list[Process]]:
    """Start every rank of a scenario; kill what is left at the end."""
    port = free_port()
    command = [sys.executable, "-m", "tests.processes", scenario]
    started = [
        Process(command, {**launcher_variables(rank, size, port), **variables})
        for rank in range(size)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.end()


if __name__ == "__main__":
    getattr(importlib.import_module("tests.scenarios"), sys.argv[1])()
