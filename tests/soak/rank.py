"""One rank of a soak: epoch after epoch, a report of what came of every call."""

import gc
import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass

import torch

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from dcp_comm.testing.faults import Fault, FaultPlan
from tests.oracle import Floats, Ints
from tests.processes import report
from tests.scenarios import failure, gather
from tests.soak.schedule import LARGEST, ROWS, Epoch, K, Schedule

SETTLE_SECONDS = 3.0
INIT_SECONDS = 60.0


def main() -> None:
    """From epoch ``START`` to the last."""
    schedule = Schedule(**json.loads(os.environ["SOAK"]))
    rank, start = int(os.environ["RANK"]), int(os.environ["START"])
    buffer = torch.empty(schedule.size * LARGEST, dtype=torch.uint8)
    for epoch in schedule.epochs[start:]:
        os.environ["DCP_COMM_CHECK"] = epoch.check
        comm = dc.init("torch", "cpu", timeout=schedule.timeout, init_timeout=INIT_SECONDS)
        live(Life(schedule, epoch, comm, buffer), rank)
        closed = failure(comm.close)
        report(topic="closed", epoch=epoch.number, **closed, **resources())
    first = threading.active_count()
    settled(schedule.timeout)
    report(topic="end", epoch=len(schedule.epochs), python_threads=first, **resources())


@dataclass
class Life:
    """A communicator in its epoch, and the one buffer that all results go to."""

    schedule: Schedule
    epoch: Epoch
    comm: Communicator
    buffer: torch.Tensor
    merge: dc.TopKMerge | None = None

    def make(self, call: int) -> bytes:
        """One call; what came."""
        schedule, number = self.schedule, self.epoch.number
        if schedule.is_merge(number, call):
            return self._merge(*schedule.scores(number, call))
        payload = bytearray(schedule.payload(number, call, self.comm.rank))
        mine = torch.frombuffer(payload, dtype=torch.uint8)
        slots = self.buffer[: self.comm.size * len(payload)]
        self.comm.all_gather_into(slots, mine)
        return slots.numpy().tobytes()

    def _merge(self, scores: Floats, lengths: Ints) -> bytes:
        size, rank = self.comm.size, self.comm.rank
        if self.merge is None:
            self.merge = dc.TopKMerge(self.comm, K, ROWS, strategy="gather")
        mine = torch.from_numpy(scores[:, rank::size].copy())
        local = dc.sharding.local_length(torch.from_numpy(lengths), rank=rank, size=size)
        found = self.merge(*dc.local_topk(mine, K, lengths=local), local)
        return found.ids.numpy().tobytes()


def live(life: Life, rank: int) -> None:
    """All calls of an epoch, until its end or a failure; then once more, to see it stay dead."""
    epoch, comm = life.epoch, life.comm

    def witness(fault: Fault) -> None:
        kind, after = type(fault).__name__, getattr(fault, "after", None)
        report(topic="struck", epoch=epoch.number, kind=kind, call=fault.call, after=after)

    FaultPlan(*epoch.faults, witness=witness).into_backend(comm)
    for call in range(life.schedule.tried(epoch)):
        if epoch.ending == "leave" and (rank, call) == (epoch.victim, epoch.call):
            report(topic="struck", epoch=epoch.number, kind="Leave", call=call, after=None)
            return
        started = time.monotonic()
        try:
            found = life.make(call)
        except (dc.errors.DcpCommError, MemoryError) as error:
            told = {"error": type(error).__name__, "text": f"{error}"}
            took, again = time.monotonic() - started, failure(lambda: gather(comm))
            report(topic="failed", epoch=epoch.number, call=call, **told, seconds=took, again=again)
            return
        report(topic="done", epoch=epoch.number, call=call, digest=digest(found))


def digest(found: bytes) -> str:
    """Of every bit."""
    return hashlib.blake2b(found, digest_size=8).hexdigest()


def resources() -> dict[str, int]:
    """Open descriptors, threads of any kind, resident bytes."""
    with open("/proc/self/status") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": int(fields["Threads"]),
        "resident": 1024 * int(fields["VmRSS"].split()[0]),
    }


def settled(timeout: float) -> None:
    """Wait for what gloo still holds of broken communicators: until its own timeout, no longer."""
    end = time.monotonic() + timeout + SETTLE_SECONDS
    while threading.active_count() > 1 and time.monotonic() < end:
        time.sleep(0.05)
    gc.collect()
