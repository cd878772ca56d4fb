"""The checker: what the ranks of a soak told, against what the schedule says must have been."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.processes import Report
from tests.soak.rank import digest
from tests.soak.schedule import HARMLESS, Epoch, Schedule

LOST_SECONDS, SPARE_SECONDS, CLOSE_SECONDS = 2.0, 2.0, 5.0
GROWTH_BYTES = 32 << 20
STRIKES = {"kill": "Kill", "raise": "Raise", "freeze": "Stop", "short freeze": "Stop"}
STRIKES |= {"leave": "Leave", "late": "Delay"}


@dataclass
class Told:
    """What one rank told of one epoch."""

    done: list[Report] = field(default_factory=list)
    failed: list[Report] = field(default_factory=list)
    struck: list[Report] = field(default_factory=list)
    closed: list[Report] = field(default_factory=list)
    end: list[Report] = field(default_factory=list)


Places = dict[tuple[int, int], Told]


def violations(schedule: Schedule, reports: Sequence[Report]) -> list[str]:
    """Everything that must not have happened, in words; empty for a good soak."""
    places: Places = defaultdict(Told)
    for each in reports:
        getattr(places[each["epoch"], each["rank"]], each["topic"]).append(each)
    found: list[str] = []
    for epoch in schedule.epochs:
        for rank in range(schedule.size):
            told = places[epoch.number, rank]
            where = f"epoch {epoch.number} ({epoch.ending} by {epoch.victim}), rank {rank}"
            problems = [*wrong_data(schedule, epoch, told), *wrong_end(schedule, epoch, rank, told)]
            found += [f"{where}: {problem}" for problem in problems]
    return found + list(growth(schedule, places))


def wrong_data(schedule: Schedule, epoch: Epoch, told: Told) -> Iterator[str]:
    """Results that were reported as success and are not what must come, or came after a failure."""
    for place, each in enumerate(told.done):
        if each["call"] != place:
            yield f"call {each['call']} done in place {place}"
        if each["digest"] != digest(schedule.answer(epoch.number, each["call"])):
            yield f"call {each['call']} reported wrong data as success"
    for failed in told.failed:
        if failed["call"] != len(told.done):
            yield f"call {failed['call']} failed, and {len(told.done)} were done"
        if failed["again"]["error"] in ("list", "NoneType"):
            yield "a call after the failure succeeded"


def wrong_end(schedule: Schedule, epoch: Epoch, rank: int, told: Told) -> Iterator[str]:
    """An end of the epoch that is not the one that was ordered."""
    struck = {each["kind"] for each in told.struck}
    guilty = epoch.victim == rank or epoch.ending == "late"
    wanted = {STRIKES[epoch.ending]} if guilty and epoch.ending in STRIKES else set()
    if struck != wanted:
        yield f"faults seen: {struck or 'none'}, ordered: {wanted or 'none'}"
    for closed in told.closed:
        if closed["error"] != "NoneType" or closed["seconds"] > CLOSE_SECONDS:
            yield f"close: {closed['error']} after {closed['seconds']:.1f} s"
    killed = guilty and epoch.ending == "kill"
    if len(told.closed) != (not killed):
        yield f"{len(told.closed)} closes"
    if killed or (guilty and epoch.ending == "leave"):
        yield from (f"failed instead of ending: {each['text']}" for each in told.failed)
    elif epoch.ending in HARMLESS:
        yield from (f"failed without a cause: {each['text']}" for each in told.failed)
    elif len(told.failed) != 1:
        yield f"{len(told.failed)} failures, need 1"
    else:
        yield from wrong_failure(schedule, epoch, told.failed[0], guilty=guilty)
    inside = any(getattr(fault, "after", None) for fault in epoch.faults)
    if len(told.done) < epoch.calls or (len(told.done) > epoch.calls and not inside):
        yield f"{len(told.done)} calls done of {epoch.calls} that had partners"


def wrong_failure(
    schedule: Schedule, epoch: Epoch, failed: Report, *, guilty: bool
) -> Iterator[str]:
    """Another kind of error than the fault must give, or one that came too late."""
    kinds: tuple[str, ...] = ("CommPeerLost",)
    limit = LOST_SECONDS
    if epoch.ending == "freeze":
        kinds, limit = ("CommTimeout", "CommPeerLost"), schedule.timeout + SPARE_SECONDS
        if guilty:
            limit += schedule.frozen_seconds(epoch)
    elif epoch.ending == "raise" and guilty:
        kinds = ("MemoryError",)
    if failed["error"] not in kinds:
        yield f"{failed['error']}, need {' or '.join(kinds)}: {failed['text']}"
    if failed["seconds"] > limit:
        yield f"failed after {failed['seconds']:.1f} s, need at most {limit:.1f}"


def growth(schedule: Schedule, places: Places) -> Iterator[str]:
    """Descriptors, threads or memory of a rank's last process that are more than in its youth."""
    for rank in range(schedule.size):
        ends = places[len(schedule.epochs), rank].end
        if len(ends) != 1:
            yield f"rank {rank}: {len(ends)} ends"
            continue
        young = youth(schedule, places, rank)
        if young is None:
            continue
        for name, spare in (("descriptors", 0), ("threads", 0), ("resident", GROWTH_BYTES)):
            if ends[0][name] > young[name] + spare:
                yield f"rank {rank}: {name} grew from {young[name]} to {ends[0][name]}"


def youth(schedule: Schedule, places: Places, rank: int) -> Report | None:
    """The sample of a rank's last process after its second epoch that ended well."""
    lives: list[list[Report]] = [[]]
    for epoch in schedule.epochs:
        told = places[epoch.number, rank]
        if not told.closed:
            lives.append([])
        elif epoch.ending in HARMLESS:
            lives[-1] += told.closed
    return lives[-1][1] if len(lives[-1]) > 2 else None
