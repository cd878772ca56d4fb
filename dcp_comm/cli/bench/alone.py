"""Every stage of a merge on one device, which holds the parts of all ranks.

Stages run by themselves on buffers that are there. Whole local parts run through `TopKMerge`, on
the first rank and without its peers; see `dcp_comm.cli.bench.peers`.
"""

from collections.abc import Callable, Iterator

import torch

from dcp_comm.cli.bench import machine
from dcp_comm.cli.bench.baselines import baselines
from dcp_comm.cli.bench.inputs import Question
from dcp_comm.cli.bench.peers import without_peers
from dcp_comm.cli.bench.report import Report, StageTime, Subject
from dcp_comm.cli.bench.routes import ours, outputs_of
from dcp_comm.cli.bench.stages import STAGES, Batch, Stage
from dcp_comm.cli.bench.timing import Budget, CannotCapture, Clock, copy_gb_s
from dcp_comm.cli.bench.wanted import Wanted
from dcp_comm.cli.bench.work import Work, measure
from dcp_comm.communicator import Communicator


def run(wanted: Wanted, device: torch.device) -> Report:
    """Time everything that is wanted, in this process."""
    found = Report(machine.describe(device), {}, copy_gb_s(device))
    bench = _Bench(wanted, device, found)
    cases = list(wanted.batches())
    budget = Budget(wanted.seconds, len(cases), bench.clock)
    for size, shape, kind in cases:
        seconds = budget.next()
        if seconds <= 0:
            found.left_out.append(f"{shape}, {kind}, {size} ranks: no time left")
            continue
        batch = Batch.of(Question.draw(shape, kind, wanted.k, size, device))
        bench.time_all(batch, seconds)
    return found


class _Bench:
    """Times the stages and local parts of one question after the other.

    Args:
        wanted: Which.
        device: Where.
        found: Where the times go.
    """

    def __init__(self, wanted: Wanted, device: torch.device, found: Report) -> None:
        self._wanted, self._found, self._device = wanted, found, device
        self._mode = "graph" if device.type == "cuda" else "eager"
        self.clock = Clock(device)

    def time_all(self, batch: Batch, seconds: float) -> None:
        """Time what is of use with so many ranks."""
        stages = [
            each for each in (*STAGES, *baselines(self._device)) if self._is_wanted(batch, each)
        ]
        wholes = list(self._wholes()) if batch.question.size > 1 else []
        budget = Budget(seconds, len(stages) + len(wholes), self.clock)
        for stage in stages:
            nbytes = stage.row_bytes(batch.question) * batch.question.shape.rows
            self._time(batch, stage.name, stage.by, stage.prepare(batch), nbytes, budget.next())
        for name, output in wholes:
            self._time_whole(batch, name, output, budget.next())

    def _is_wanted(self, batch: Batch, stage: Stage) -> bool:
        of_use = not stage.ranks or batch.question.size > 1
        return of_use and self._wanted.only in f"{stage.name} by {stage.by}"

    def _wholes(self) -> Iterator[tuple[str, str]]:
        for name in self._wanted.routes:
            for output in outputs_of(name, self._wanted.outputs):
                if self._wanted.only in _whole(name, output):
                    yield name, output

    def _time_whole(self, batch: Batch, name: str, output: str, seconds: float) -> None:
        """Merge once with all ranks, in one chunk, then time the first rank's part of it."""
        question, by = batch.question, "dcp_comm.TopKMerge"

        def merge(comm: Communicator) -> Callable[[], None]:
            part, count = batch.parts[comm.rank], question.shape.rows
            order = self._wanted.order
            route = ours(comm, question, part, name, output, order, chunk_rows=count)
            comm.ledger.reset()
            route.work.call()
            nbytes = 20 * question.k * count + comm.ledger.bytes_received
            return lambda: self._time(batch, _whole(name, output), by, route.work, nbytes, seconds)

        without_peers(question.size, self._device, merge)

    def _time(
        self, batch: Batch, name: str, by: str, work: Work, nbytes: int, seconds: float
    ) -> None:
        try:
            timing = measure(work, self.clock, self._mode, seconds)
        except CannotCapture as error:
            self._found.left_out.append(str(error))
            return
        share = nbytes / timing.us / 1e3 / self._found.copy_gb_s
        subject, inexact = Subject.of(batch.question), work.inexact()
        self._found.stages.append(
            StageTime(name, by, self._mode, subject, timing, nbytes, share, inexact)
        )


def _whole(name: str, output: str) -> str:
    return f"whole local part, {name}, {output}"
