"""What ``bench merge`` found, as fields for JSON and as tables."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from dcp_comm.cli.bench import calls
from dcp_comm.cli.bench.inputs import Question
from dcp_comm.cli.bench.timing import WANTED, Timing
from dcp_comm.cli.table import size, table

SCHEMA = 1


@dataclass(frozen=True)
class Subject:
    """The rows that something was timed on: T rows of a kind, p ranks, K winners.

    Attributes:
        kind: How their scores lie.
        rows: T.
        length: Tokens of context, over all ranks.
        k: K.
        ranks: p.
    """

    kind: str
    rows: int
    length: int
    k: int
    ranks: int

    @classmethod
    def of(cls, question: Question) -> "Subject":
        """Name a question's."""
        shape = question.shape
        return cls(question.kind, shape.rows, shape.length, question.k, question.size)

    @property
    def cells(self) -> tuple[str, ...]:
        """For a table."""
        return f"{self.rows:,}", f"{self.length:,}", f"{self.ranks}", self.kind


QUERY_SPLIT = "query split"
LOCAL = tuple(f"local top-K of {of}" for of in ("own tokens", "split rows", "every row"))
"""What goes with each route: ours, the rows split, the keys replicated."""
CELLS = ("rows", "context", "ranks", "scores")


@dataclass(frozen=True)
class StageTime:
    """A stage, or a whole local part, on one device.

    Attributes:
        stage: What it does.
        by: What it is made of.
        mode: ``eager``, or ``graph`` for replays of a captured CUDA graph.
        subject: On which rows.
        timing: How long it took.
        nbytes: Bytes that it could not avoid to move.
        share: Of the copy bandwidth of this run, by those bytes.
        inexact: Rows with other tokens of equal score than the rule of ties says.
    """

    stage: str
    by: str
    mode: str
    subject: Subject
    timing: Timing
    nbytes: int
    share: float
    inexact: int


@dataclass(frozen=True)
class MergeTime:
    """A whole merge, exchange included, of the slowest rank.

    Attributes:
        route: Which way.
        output: What every rank learns.
        backend: What moved the bytes.
        mode: ``eager`` or ``graph``.
        subject: On which rows; those of one piece.
        pieces: Pieces of logits in one merge, each with as many rows.
        timing: How long it took.
        received_bytes: By each rank.
        scratch_bytes: Reserved by each rank.
        transient_bytes: Allocated meanwhile beside it, at most.
        inexact: As in `StageTime`.
        why: How the library explains its plan; empty for others.
    """

    route: str
    output: str
    backend: str
    mode: str
    subject: Subject
    pieces: int
    timing: Timing
    received_bytes: int
    scratch_bytes: int
    transient_bytes: int
    inexact: int
    why: str


@dataclass
class Report:
    """Everything that one run measured.

    Attributes:
        machine: What it ran on.
        options: What was asked for.
        copy_gb_s: Bandwidth of a large copy on the device, bytes read and written.
        stages: On one device.
        merges: Over all ranks.
        collectives: By size and backend.
        verified: Strategies whose merges equal a plain sort, by backend; looked at before anything
            was timed.
        communicator_bytes: GPU memory outside torch's allocator, by backend.
        interleaved: Merges in turn with torch's own collective that all came through.
        left_out: What the budget or the device had no place for.
    """

    machine: dict[str, Any]
    options: dict[str, Any]
    copy_gb_s: float
    stages: list[StageTime] = field(default_factory=list)
    merges: list[MergeTime] = field(default_factory=list)
    collectives: list[calls.Timing] = field(default_factory=list)
    verified: dict[str, list[str]] = field(default_factory=dict)
    communicator_bytes: dict[str, int] = field(default_factory=dict)
    interleaved: int = 0
    left_out: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can write."""
        return {"schema": SCHEMA, **asdict(self)}

    def text(self) -> str:
        """Return the tables."""
        return "\n\n".join(self._sections())

    def _sections(self) -> Iterator[str]:
        yield "\n".join(f"{name}: {value}" for name, value in self.machine.items())
        yield f"copy on the device: {self.copy_gb_s:,.0f} GB/s, bytes read and written"
        for backend, strategies in self.verified.items():
            taken = size(self.communicator_bytes[backend])
            yield f"backend {backend}: {', '.join(strategies)} merge exactly; takes {taken}"
        if self.collectives:
            yield _collectives(self.collectives)
        if self.stages:
            yield _stages(self.stages)
        if self.merges:
            yield _merges(self.merges)
            yield _rivals(self.stages, self.merges)
        if self.interleaved:
            yield f"{self.interleaved:,} merges in turn with torch's own all-reduce came through"
        samples = [each.timing.samples for each in self.stages]
        samples += [each.timing.samples for each in self.merges]
        few = sum(count < WANTED for count in samples)
        yield f"{few} of {len(samples)} timings have fewer than {WANTED} samples"
        yield "\n".join(("left out:", *self.left_out)) if self.left_out else "nothing left out"


def _stages(stages: list[StageTime]) -> str:
    lines = [
        (
            *each.subject.cells,
            each.stage,
            each.by,
            each.mode,
            *_times(each.timing),
            f"{each.share:.0%}",
            f"{each.inexact:,}" if each.inexact else "",
        )
        for each in stages
    ]
    header = (*CELLS, "stage", "by", "mode", "us", "p10", "p90", "n", "of copy", "other ties")
    return table(header, lines, left=7)


def _merges(merges: list[MergeTime]) -> str:
    base = {_place(each): each.timing.us for each in merges if each.route.startswith("seed, 1")}
    lines = []
    for each in merges:
        seed = base.get(_place(each))
        lines.append(
            (
                *each.subject.cells,
                each.route if each.pieces == 1 else f"{each.route}, {each.pieces} pieces",
                each.output,
                each.mode,
                *_times(each.timing),
                f"{seed * each.pieces / each.timing.us:.2f} x" if seed else "",
                size(each.received_bytes),
                size(each.scratch_bytes),
                size(each.transient_bytes),
            )
        )
    units = ("us", "p10", "p90", "n", "seed / it", "received", "scratch", "beside it")
    return table((*CELLS, "route", "output", "mode", *units), lines, left=7)


def _rivals(stages: list[StageTime], merges: list[MergeTime]) -> str:
    """From logits to winners: by the best strategy for each output, and by the rivals.

    Scoring is not in it: the rival that replicates the index keys scores p times as many tokens.
    """
    local = {(each.subject, each.mode, each.stage): each.timing.us for each in stages}
    best: dict[tuple[Subject, str, str], float] = {}
    for each in merges:
        if each.pieces == 1 and (each.why or each.route == QUERY_SPLIT):
            key = each.subject, each.mode, each.output if each.why else QUERY_SPLIT
            best[key] = min(each.timing.us, best.get(key, math.inf))
    lines = []
    for place in dict.fromkeys((each.subject, each.mode) for each in stages):
        own, split, every = (local.get((*place, name), math.nan) for name in LOCAL)
        merged = (best.get((*place, name), math.nan) for name in ("local", "global", QUERY_SPLIT))
        alone = (own, own, split)
        times = (*(us + more for us, more in zip(alone, merged, strict=True)), every)
        lines.append((*place[0].cells, place[1], *(f"{us:.1f}" for us in times)))
    header = (*CELLS, "mode", "ours, local", "ours, global", "query split", "replicated keys")
    head = (
        "From logits to winners, us; without scoring, which replicated keys multiply by the ranks"
    )
    return f"{head}\n{table(header, lines, left=5)}"


def _place(each: MergeTime) -> tuple[object, ...]:
    return each.subject, each.mode, each.backend


def _times(timing: Timing) -> tuple[str, ...]:
    return (f"{timing.us:.1f}", f"{timing.low:.1f}", f"{timing.high:.1f}", f"{timing.samples}")


def _collectives(timings: list[calls.Timing]) -> str:
    lines = [
        (each.op, each.backend, each.mode, each.place, size(each.size), f"{each.time:.1f}")
        for each in timings
    ]
    return table(("op", "backend", "mode", "place", "size", "us"), lines, left=4)
