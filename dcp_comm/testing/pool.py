"""A pool of real processes, one a rank, that live on between rules.

Bringing up a rank costs seconds, most of them the import of torch; a rule costs milliseconds.
"""

import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Self

import torch.distributed as dist

from dcp_comm.deadline import seconds
from dcp_comm.testing.conformance import CheckResult, ConformanceFailure

Environment = Callable[[int], Mapping[str, str]]

_WORDS_BYTES = 2000
_LAST_SECONDS = 2.0
_STOP_SECONDS = 3.0


class RankPool:
    """``size`` ranks in processes of their own, which run one rule at a time together.

    They come up with the first rule, as under torchrun: the pool serves their store on loopback. If
    a rule fails they are replaced before the next one; if they cannot come up, all rules fail.

    Args:
        backend: A name from `dcp_comm.list_backends`.
        size: Number of ranks.
        device: ``cpu``, or ``cuda`` for each local rank's GPU (shared, where there are fewer).
        timeout: Seconds that a rule, and the start, may take; half of it for one call.
        environment: What a rank's environment has beside this process' and torchrun's variables.
    """

    def __init__(
        self,
        backend: str,
        size: int,
        *,
        device: str = "cpu",
        timeout: float = 60.0,
        environment: Environment = lambda _: {},
    ) -> None:
        self.size, self.timeout = size, seconds(timeout, "RankPool", "timeout")
        self._options = {"backend": backend, "device": device, "timeout": self.timeout / 2}
        self._environment = environment
        self._ranks: list[_Rank] = []
        self._failure: ConformanceFailure | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, name: str) -> None:
        """Run one rule of `dcp_comm.testing.conformance.CHECKS` on all ranks.

        Raises:
            ConformanceFailure: It was broken; or a rank hung, ended or could not come up.
        """
        if self._failure is not None:
            raise ConformanceFailure(*self._failure.args)
        if not self._ranks:
            self._start()
        for rank in self._ranks:
            rank.send(name)
        self._collect(name)

    def close(self) -> None:
        """End all ranks."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.dismiss()
        for rank in ranks:
            rank.stop()

    def _start(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        self._store = _serve(listener.detach(), port)
        for rank in range(self.size):
            variables = {**self._launcher(rank, port), **self._environment(rank)}
            self._ranks.append(_Rank(rank, variables, self._options))
        try:
            self._collect("start")
        except ConformanceFailure as failure:
            self._failure = failure
            raise

    def _launcher(self, rank: int, port: int) -> dict[str, str]:
        """What torchrun would set; modules are found where this process finds them."""
        return {
            "DCP_COMM_CHECK": "all",
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "RANK": f"{rank}",
            "LOCAL_RANK": f"{rank}",
            "WORLD_SIZE": f"{self.size}",
            "LOCAL_WORLD_SIZE": f"{self.size}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": f"{port}",
            "TORCHELASTIC_RUN_ID": f"{port}",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def _collect(self, name: str) -> None:
        """Wait for every rank's answer; any failure ends the ranks."""
        try:
            trouble = self._trouble()
        except BaseException:
            self.close()
            raise
        if trouble:
            self.close()
            raise ConformanceFailure(f"{name}: " + "\n".join(dict.fromkeys(trouble)))

    def _trouble(self) -> list[str]:
        """What failed, and which ranks did not answer and why."""
        answers = {rank.number: answer for rank, answer in self._answers()}
        failed = [answer.detail for answer in answers.values() if not answer.ok]
        return [rank.trouble() for rank in self._ranks if rank.number not in answers] + failed

    def _answers(self) -> "Iterator[tuple[_Rank, CheckResult]]":
        """Answers as they come, until all are there or time is up; shortly after a rank ended."""
        end = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            for rank in self._ranks:
                selector.register(rank.results, selectors.EVENT_READ, rank)
            while selector.get_map():
                ready = selector.select(max(0.0, end - time.monotonic()))
                if not ready:
                    return
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    line = key.data.results.readline()
                    if line:
                        yield key.data, CheckResult(**json.loads(line))
                    else:
                        end = min(end, time.monotonic() + _LAST_SECONDS)


class _Rank:
    """One process and the pipes to it."""

    def __init__(self, number: int, variables: Mapping[str, str], options: object) -> None:
        self.number = number
        jobs_end, jobs = os.pipe()
        results, results_end = os.pipe()
        self.jobs, self.results = os.fdopen(jobs, "w", buffering=1), os.fdopen(results)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        module = ("-m", "dcp_comm.testing.worker")
        command = [sys.executable, *module, f"{jobs_end}", f"{results_end}", json.dumps(options)]
        try:
            self._process = subprocess.Popen(
                command,
                env=variables,
                pass_fds=(jobs_end, results_end),
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.close(jobs_end)
            os.close(results_end)

    def send(self, job: str) -> None:
        """Hand over a job; a rank that has ended is found out when it does not answer."""
        with contextlib.suppress(BrokenPipeError):
            self.jobs.write(f"{job}\n")

    def trouble(self) -> str:
        """Why there is no answer, with the process' last words."""
        try:
            what = f"ended with exit code {self._process.wait(0.2)}"
        except subprocess.TimeoutExpired:
            what = "did not answer in time"
        self._words.seek(max(0, self._words.seek(0, os.SEEK_END) - _WORDS_BYTES))
        return f"rank {self.number} {what}\n{self._words.read().decode(errors='replace')}"

    def dismiss(self) -> None:
        """Tell the process that there are no more jobs."""
        with contextlib.suppress(BrokenPipeError):
            self.jobs.close()

    def stop(self) -> None:
        """Wait for the process to end by itself, for a while."""
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.results.close()
        self._words.close()


def _serve(listener: int, port: int) -> dist.Store:
    """The store of one launch, as torchrun's agent runs it, on loopback alone."""
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=60),
        master_listen_fd=listener,
    )
