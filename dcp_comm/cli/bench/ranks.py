"""Whole merges between real ranks, each in a process of its own, beside what they replace.

In this order: every strategy over every backend against a plain sort; collectives by size; merges
by route over the first backend, each checked before it is timed; merges in turn with torch's own
collective, as an engine has them.
"""

from collections.abc import Iterator
from contextlib import ExitStack

import torch
import torch.distributed as dist

from dcp_comm.cli.bench import machine, routes
from dcp_comm.cli.bench.calls import sizes, time_call
from dcp_comm.cli.bench.inputs import Part, Question
from dcp_comm.cli.bench.launched import connect
from dcp_comm.cli.bench.report import LOCAL, QUERY_SPLIT, MergeTime, Report, StageTime, Subject
from dcp_comm.cli.bench.routes import Route
from dcp_comm.cli.bench.rows import Shape
from dcp_comm.cli.bench.stages import local_topk_work
from dcp_comm.cli.bench.timing import MODES, Budget, CannotCapture, Clock, Timing, copy_gb_s
from dcp_comm.cli.bench.wanted import Wanted
from dcp_comm.cli.bench.work import Work, WrongRows, measure, transient_bytes
from dcp_comm.communicator import Communicator
from dcp_comm.testing.exactness import wrong_rows
from dcp_comm.topk.choice import STRATEGIES

_OPS = {"all_gather_into": "in", "all_to_all_into": "out"}
"""What merges are made of, and in which place."""
_CALLS = 20
_LOCAL_SECONDS = 0.2


def run(wanted: Wanted, device: torch.device, backends: list[str]) -> Report:
    """Be one rank: time everything that is wanted; collective, the same report on every rank.

    Raises:
        WrongRows: A merge is wrong; nothing is reported.
    """
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        with ExitStack() as stack:
            comms = [stack.enter_context(connect(name, device)) for name in backends]
            found = Report(machine.describe(device), {}, copy_gb_s(device))
            for comm in comms:
                _verify(comm, found)
                comm.prepare(wanted.largest)
                _time_collectives(comm, wanted, found)
                found.communicator_bytes[comm.backend] = comm.footprint.nbytes
            bench = _Bench(wanted, comms[0], found)
            bench.time_all()
            bench.interleave()
        return found
    finally:
        dist.destroy_process_group()


def _verify(comm: Communicator, found: Report) -> None:
    for strategy in STRATEGIES:
        if wrong := wrong_rows(comm, strategy):
            raise WrongRows(f"bench: {strategy} over {comm.backend}: {wrong} rows are wrong")
    found.verified[comm.backend] = list(STRATEGIES)


def _time_collectives(comm: Communicator, wanted: Wanted, found: Report) -> None:
    for op, place in _OPS.items():
        for mode in _modes(comm):
            for nbytes in sizes(1024, wanted.largest):
                found.collectives.append(time_call(comm, op, nbytes, place, mode, _CALLS))


def _modes(comm: Communicator) -> tuple[str, ...]:
    captures = comm.device.type == "cuda" and comm.capabilities.capturable
    return MODES if captures else MODES[:1]


class _Bench:
    """Times every route on one question after the other.

    Args:
        wanted: Which.
        comm: What moves the bytes.
        found: Where the times go.
    """

    def __init__(self, wanted: Wanted, comm: Communicator, found: Report) -> None:
        self._wanted, self._comm, self._found = wanted, comm, found
        self._clock = Clock(comm.device, comm)

    def time_all(self) -> None:
        """Time what is wanted, as far as the budget goes."""
        wanted = self._wanted
        cases = list(wanted.questions())
        budget = Budget(wanted.seconds, len(cases), self._clock)
        for shape, kind in cases:
            seconds = budget.next()
            if seconds <= 0:
                self._found.left_out.append(f"{shape}, {kind}: no time left")
                continue
            question = self._question(shape, kind)
            self._time_routes(question, seconds)
            if kind == wanted.kinds[0]:
                self._time_local(question)

    def interleave(self) -> None:
        """Merge in turn with torch's own all-reduce, on one stream, and check the last result."""
        shape, kind = min(self._wanted.questions(), key=lambda each: each[0].rows)
        question = self._question(shape, kind)
        output, order = self._wanted.outputs[-1], self._wanted.order
        part = question.part(self._comm.rank)
        route = routes.ours(self._comm, question, part, "auto", output, order)
        other = torch.ones(1024, device=self._comm.device)
        for _ in range(self._wanted.steps):
            route.work.call()
            dist.all_reduce(other, dist.ReduceOp.MAX)
        measure(route.work, self._clock, MODES[0], 0)
        self._found.interleaved = self._wanted.steps

    def _question(self, shape: Shape, kind: str) -> Question:
        comm = self._comm
        return Question.draw(shape, kind, self._wanted.k, comm.size, comm.device)

    def _time_routes(self, question: Question, seconds: float) -> None:
        part, names = question.part(self._comm.rank), list(self._names(question.shape))
        budget = Budget(seconds, len(names) * len(_modes(self._comm)), self._clock)
        for name, output, pieces in names:
            self._time(question, self._route(question, part, name, output, pieces), budget)

    def _names(self, shape: Shape) -> Iterator[tuple[str, str, int]]:
        """Yield route, output and pieces of every merge."""
        wanted = self._wanted
        for name in wanted.routes:
            for output in routes.outputs_of(name, wanted.outputs):
                if wanted.only in name:
                    yield name, output, 1
                    if name == "auto" and wanted.pieces(shape) > 1:
                        yield name, output, wanted.pieces(shape)
        for name in (*routes.SEED, QUERY_SPLIT):
            if wanted.only in name:
                yield name, "global", 1

    def _route(self, question: Question, part: Part, name: str, output: str, pieces: int) -> Route:
        if name in routes.SEED:
            return routes.seed(self._comm, question, part, name)
        if name == QUERY_SPLIT:
            return routes.query_split(self._comm, question)
        return routes.ours(self._comm, question, part, name, output, self._wanted.order, pieces)

    def _time(self, question: Question, route: Route, budget: Budget) -> None:
        """Time a route in every mode, after two calls that show what it moves and takes."""
        comm, work = self._comm, route.work
        work.call()
        comm.ledger.reset()
        transient = transient_bytes(work.call, comm.device)
        received = comm.ledger.bytes_received
        for mode in _modes(comm):
            timing = self._timed(work, mode, budget)
            if timing is None:
                continue
            self._found.merges.append(
                MergeTime(
                    route=route.name,
                    output=route.output,
                    backend=comm.backend,
                    mode=mode,
                    subject=Subject.of(question),
                    pieces=route.pieces,
                    timing=timing,
                    received_bytes=received,
                    scratch_bytes=route.scratch_bytes,
                    transient_bytes=transient,
                    inexact=work.inexact(),
                    why=route.why,
                )
            )

    def _time_local(self, question: Question) -> None:
        """Time the local top-K of each route: over own tokens, for split rows, for every row."""
        comm, rows = self._comm, question.shape.rows
        share = -(-rows // comm.size)
        own = question.scores[:, comm.rank :: comm.size].contiguous()
        mode = _modes(comm)[-1]
        split = question.scores[comm.rank * share :][:share]
        for name, scores in zip(LOCAL, (own, split, question.scores), strict=True):
            work = local_topk_work(scores, question.k)
            timing = self._timed(work, mode, Budget(_LOCAL_SECONDS, 1, self._clock))
            if timing is not None:
                nbytes = scores.nbytes + 8 * question.k * len(scores)
                share_of_copy = nbytes / timing.us / 1e3 / self._found.copy_gb_s
                self._found.stages.append(
                    StageTime(
                        name,
                        "dcp_comm.local_topk",
                        mode,
                        Subject.of(question),
                        timing,
                        nbytes,
                        share_of_copy,
                        0,
                    )
                )

    def _timed(self, work: Work, mode: str, budget: Budget) -> Timing | None:
        """Check and time; None where it cannot be captured, which is noted."""
        try:
            return measure(work, self._clock, mode, max(0.0, budget.next()))
        except CannotCapture as error:
            self._found.left_out.append(str(error))
            return None
