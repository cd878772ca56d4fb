"""Who starts the ranks of a soak, starts killed ones again and wakes frozen ones.

The store stands here, as it does in a launcher's agent: it outlives every rank. What the ranks tell
is kept here.
"""

import json
import signal
import socket
import threading
from dataclasses import asdict
from datetime import timedelta

import torch.distributed as dist

from tests.forks import Forked
from tests.processes import Report, launcher_variables
from tests.soak.schedule import Schedule

PATIENCE = 90.0


class Supervisor:
    """One soak."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.reports: list[Report] = []
        self.troubles: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0))
        self._port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            "127.0.0.1",
            self._port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=PATIENCE),
            master_listen_fd=listener.detach(),
        )

    def run(self) -> None:
        """Have every rank live through all epochs."""
        threads = [
            threading.Thread(target=self._guarded, args=(rank,), daemon=True)
            for rank in range(self.schedule.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guarded(self, rank: int) -> None:
        try:
            self._follow(rank)
        except Exception as error:
            self.troubles.append(f"rank {rank}: {error!r}")

    def _follow(self, rank: int) -> None:
        """A rank through all its processes."""
        start: int | None = 0
        while start is not None:
            process = Forked(["tests.soak.rank:main"], self._variables(rank, start))
            try:
                start = self._one_life(process)
            finally:
                process.end()

    def _one_life(self, process: Forked) -> int | None:
        """Keep what a process tells; where its successor starts, or None if there shall be none."""
        last: Report = {}
        for last in process.stream(PATIENCE):
            self.reports.append(last)
            if last["topic"] == "struck" and last["kind"] == "Stop":
                epoch = self.schedule.epochs[last["epoch"]]
                wait = self.schedule.frozen_seconds(epoch)
                threading.Timer(wait, process.signal, (signal.SIGCONT,)).start()
        code = process.wait()
        if code not in (0, -signal.SIGKILL):
            raise RuntimeError(f"ended with {code} after {last}\n{process.errors()}")
        return None if code == 0 else int(last["epoch"]) + 1

    def _variables(self, rank: int, start: int) -> dict[str, str]:
        return {
            **launcher_variables(rank, self.schedule.size, self._port),
            "TORCHELASTIC_RUN_ID": "soak",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "SOAK": json.dumps(asdict(self.schedule)),
            "START": f"{start}",
        }
