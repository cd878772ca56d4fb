"""How far ``auto`` is behind the best strategy: as it was measured, and as a model would choose."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dcp_comm.cli.bench.model import Record

TOLERANCE = 1.10

Place = tuple[object, ...]


@dataclass(frozen=True)
class Verdict:
    """What was taken for some rows, and what would have been best.

    Attributes:
        taken: The merge.
        best: The one by the best strategy.
    """

    taken: Record
    best: Record

    @property
    def ratio(self) -> float:
        """How many times the best strategy's time it took."""
        return us(self.taken) / us(self.best)

    @property
    def late(self) -> bool:
        """Whether that is beyond `TOLERANCE`."""
        return self.ratio > TOLERANCE


def measured(merges: Iterable[Record]) -> Iterator[Verdict]:
    """Judge every ``auto`` by its own time.

    Only merges of the same rows, output, mode and backend, in one piece, are compared.
    """
    for routes in _groups(merges):
        auto = routes.pop("auto", None)
        if auto is not None and routes:
            yield Verdict(auto, min(routes.values(), key=us))


def chosen(
    merges: Iterable[Record], take: Callable[[dict[str, Record]], str | None]
) -> Iterator[Verdict | None]:
    """Judge which of some routes is taken, by the time that it was measured to take.

    None stands for a case in which ``take`` knows of none.
    """
    for routes in _groups(merges):
        routes.pop("auto", None)
        taken = take(routes) if routes else None
        if taken is not None:
            yield Verdict(routes[taken], min(routes.values(), key=us))
        elif routes:
            yield None


def us(merge: Record) -> float:
    """Return a merge's microseconds."""
    return float(merge["timing"]["us"])


def _groups(merges: Iterable[Record]) -> Iterable[dict[str, Record]]:
    groups: dict[Place, dict[str, Record]] = defaultdict(dict)
    for each in merges:
        if each["why"] and each["pieces"] == 1:
            place = tuple(sorted(each["subject"].items())), *(each[name] for name in _SAME)
            groups[place][each["route"]] = each
    return groups.values()


_SAME = ("output", "mode", "backend")
