"""Line up the flight recorders of several ranks and say who stopped where.

Files are those that communicators wrote to DCP_COMM_TRACE_DIR when they died.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcp_comm.cli.options import UsageError
from dcp_comm.cli.table import table
from dcp_comm.recorder import FORMAT

_LARGEST_BYTES = 64 << 20

Call = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="one a rank")
    parser.add_argument("--last", type=int, default=5, help="calls a communicator to show")


def run(arguments: argparse.Namespace) -> int:
    """Print a section a communicator; 1 if a rank stopped short."""
    stories = line_up(read(path) for path in arguments.files)
    print("\n\n".join("\n".join(story.lines(arguments.last)) for story in stories))
    return 1 if any(story.short for story in stories) else 0


def read(path: Path) -> dict[str, Any]:
    """Read one file.

    Raises:
        UsageError: It is no trace.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{path}: too large for a trace")
        found = json.loads(path.read_text())
        known = found["format"] == FORMAT
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: no trace of this library: {error}") from error
    if not known:
        raise UsageError(f"{path}: got {found['format']!r}, need {FORMAT!r}")
    return dict(found)


@dataclass(frozen=True)
class Story:
    """What the files tell of one communicator.

    Attributes:
        name: Its name.
        size: Its number of ranks.
        calls: By rank, by number: the last entry of that number.
        causes: By rank, why it died.
    """

    name: str
    size: int
    calls: dict[int, dict[int, Call]]
    causes: dict[int, str]

    @property
    def reached(self) -> dict[int, int]:
        """The number of the last call that each rank began."""
        return {rank: max(calls) for rank, calls in self.calls.items() if calls}

    @property
    def short(self) -> list[int]:
        """Ranks that did not begin the last call that another one began, or told nothing."""
        furthest = max(self.reached.values(), default=0)
        return [rank for rank in range(self.size) if self.reached.get(rank, -1) < furthest]

    def lines(self, last: int) -> Iterator[str]:
        """Word it: the last calls in a row each, then who stopped where."""
        ranks, reached = sorted(self.calls), self.reached
        yield f"{self.name}: {len(ranks)} of {self.size} ranks told"
        numbers = sorted({number for calls in self.calls.values() for number in calls})[-last:]
        header = ("call", *(f"rank {rank}" for rank in ranks))
        rows = [
            (f"{number}", *(_cell(self.calls[rank].get(number)) for rank in ranks))
            for number in numbers
        ]
        yield table(header, rows, left=len(header))
        for rank in range(self.size):
            yield f"rank {rank}: {self._verdict(rank, max(reached.values(), default=0))}"

    def _verdict(self, rank: int, furthest: int) -> str:
        if rank not in self.reached:
            return "no trace: it was killed, or is still alive"
        reached = self.reached[rank]
        call = self.calls[rank][reached]
        cause = f"; {self.causes[rank]}" if rank in self.causes else ""
        if reached < furthest:
            return f"STOPPED SHORT after call {reached}, {_cell(call)}{cause}"
        return f"stopped in call {reached}, {_cell(call)}{cause}"


def line_up(traces: Iterable[dict[str, Any]]) -> list[Story]:
    """Gather what files of several processes tell of each communicator that died in one of them."""
    calls: dict[str, dict[int, dict[int, Call]]] = defaultdict(lambda: defaultdict(dict))
    causes: dict[str, dict[int, str]] = defaultdict(dict)
    sizes: dict[str, int] = {}
    for trace in traces:
        name, rank = trace["communicator"], trace["rank"]
        sizes[name] = trace["size"]
        if trace["cause"]:
            causes[name][rank] = f"{trace['cause'][0]}: {_first_line(trace['cause'][1])}"
        for call in trace["calls"]:
            calls[call["communicator"]][call["rank"]][call["number"]] = call
    return [Story(name, sizes[name], dict(calls[name]), causes[name]) for name in sizes]


def _cell(call: Call | None) -> str:
    if call is None:
        return "-"
    moved: Sequence[Call] = call["tensors"]
    sizes = " + ".join(f"{each['dtype']}{each['shape']}" for each in moved)
    purpose = f"{call['purpose']}/{call['step']}" if call["purpose"] else ""
    return " ".join(filter(None, (call["op"], sizes, purpose, call["state"])))


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]
