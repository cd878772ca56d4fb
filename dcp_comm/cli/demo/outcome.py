"""What the demo is asked for, and what it has to say."""

from dataclasses import dataclass

from dcp_comm.cli.demo.exactness import Exactness
from dcp_comm.cli.demo.memory import Memory
from dcp_comm.cli.demo.strategies import Moved
from dcp_comm.cli.demo.where import Where


@dataclass(frozen=True)
class Options:
    """What the command line asks for.

    Attributes:
        k: Winners a row.
        interleave: Consecutive tokens dealt to a rank at a time.
        needle_depth: Where the needle is hidden, 0 .. 1.
        rows: Query rows from the text; the question comes on top.
        text: The file to index; None for the documentation topics.
        broken: The mistake to put into our way; None for none.
    """

    k: int = 2048
    interleave: int = 1
    needle_depth: float = 0.5
    rows: int = 1280
    text: str | None = None
    broken: str | None = None


@dataclass(frozen=True)
class Text:
    """What was indexed.

    Attributes:
        title: Where it comes from.
        tokens: Its length, the needle included.
        needle: The needle's words.
        at: Position of the first of them.
    """

    title: str
    tokens: int
    needle: int
    at: int


@dataclass(frozen=True)
class Run:
    """How it was indexed.

    Attributes:
        ranks: Number of ranks.
        backend: The communicator's.
        device: Where rank 0's tensors were.
        segments: Rows of each segment, in packing order.
        chunk_rows: Rows of one exchange.
        largest_score: Of all rows, exactly.
        whole_scores: Whether every score was a whole number below 2^24.
    """

    ranks: int
    backend: str
    device: str
    segments: dict[str, int]
    chunk_rows: int
    largest_score: int
    whole_scores: bool

    @property
    def rows(self) -> int:
        """Rows of the step."""
        return sum(self.segments.values())


@dataclass(frozen=True)
class Found:
    """The question, and the token that answers it best, amid its neighbours."""

    question: str
    position: int
    rank: int
    excerpt: str


@dataclass(frozen=True)
class Page:
    """How an outcome is told: as text, as fields fit for JSON, in one line, and what is wrong."""

    text: str
    fields: dict[str, object]
    verdict: str
    failures: list[str]


@dataclass(frozen=True)
class Outcome:
    """Everything, from the point of view of rank 0; ``seconds`` is by stage."""

    options: Options
    text: Text
    run: Run
    memory: Memory
    exactness: Exactness
    strategies: tuple[Moved, ...]
    where: Where
    found: Found
    seconds: dict[str, float]

    @property
    def rows_checked(self) -> int:
        """Rows of ours that were compared with the plain answer, over all inputs."""
        return self.run.rows * len(self.exactness.ours)

    @property
    def failures(self) -> list[str]:
        """What is not as it must be; empty where all is well."""
        ours = self.exactness.ours.items()
        differ = [f"{verdict.rows:,} on {name}" for name, verdict in ours if verdict.rows]
        wrong = []
        if differ:
            wrong.append(f"rows that differ, of {self.run.rows:,}: {', '.join(differ)}")
        wrong += [
            f"rows that differ by strategy {each.name}, output {each.output}: {each.wrong:,}"
            for each in self.strategies
            if each.wrong
        ]
        if self.options.broken and not wrong:
            wrong.append("the mistake is in, but no row shows it: take more rows or more text")
        if not self.run.whole_scores:
            wrong.append("a score was no whole number below 2^24")
        if self.memory.used > self.memory.reserved:
            wrong.append("ours took more memory than it had reserved")
        if not self.memory.failure:
            wrong.append("the published merge fitted under the cap")
        return wrong
