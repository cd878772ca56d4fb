"""The checker of the soak bites: a good history passes, each kind of bad one is found."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.processes import Report
from tests.soak.history import STRIKES, violations
from tests.soak.rank import digest
from tests.soak.schedule import HARMLESS, Schedule

SCHEDULE = Schedule(seed=3, size=2, gathers=60, timeout=1.0)
SAMPLE = {"descriptors": 11, "threads": 1, "resident": 200 << 20}
EPOCH = {epoch.ending: epoch for epoch in SCHEDULE.epochs}

History = list[Report]


def a_good_history() -> History:
    """What all ranks would tell of a soak in which all went as it must."""
    found: History = []
    for epoch in SCHEDULE.epochs:
        for rank in range(SCHEDULE.size):
            place = {"epoch": epoch.number, "rank": rank}
            guilty = epoch.victim == rank or epoch.ending == "late"
            fatal = epoch.ending not in HARMLESS
            for call in range(epoch.call if fatal else epoch.calls):
                right = digest(SCHEDULE.answer(epoch.number, call))
                found.append({"topic": "done", **place, "call": call, "digest": right})
            if guilty and epoch.ending in STRIKES:
                found.append({"topic": "struck", **place, "kind": STRIKES[epoch.ending]})
            if fatal and not (guilty and epoch.ending in ("kill", "leave")):
                mine = guilty and epoch.ending == "raise"
                error = "MemoryError" if mine else "CommPeerLost"
                told = {"error": error, "text": "", "seconds": 0.1, "again": {"error": error}}
                found.append({"topic": "failed", **place, "call": epoch.call, **told})
            if not (guilty and epoch.ending == "kill"):
                closed = {"error": "NoneType", "seconds": 0.0, **SAMPLE}
                found.append({"topic": "closed", **place, **closed})
    last = len(SCHEDULE.epochs)
    return found + [{"topic": "end", "epoch": last, "rank": rank, **SAMPLE} for rank in (0, 1)]


def one(history: History, topic: str, ending: str = "") -> Report:
    """A report of one kind, of an epoch that ended so."""
    return next(
        each
        for each in history
        if each["topic"] == topic and (not ending or EPOCH[ending].number == each["epoch"])
    )


def done_twice(history: History) -> None:
    history.append(one(history, "done", "close"))


def wrong_data(history: History) -> None:
    one(history, "done", "kill")["digest"] = "0" * 16


def success_after_failure(history: History) -> None:
    one(history, "failed")["again"] = {"error": "list"}


def done_without_a_partner(history: History) -> None:
    epoch = EPOCH["raise"]
    right = digest(SCHEDULE.answer(epoch.number, epoch.call))
    place = {"epoch": epoch.number, "rank": 1 - epoch.victim, "call": epoch.call}
    history.append({"topic": "done", **place, "digest": right})


def another_error(history: History) -> None:
    one(history, "failed", "kill")["error"] = "CommTimeout"


def told_late(history: History) -> None:
    one(history, "failed", "kill")["seconds"] = 2.1


def never_told(history: History) -> None:
    history.remove(one(history, "failed", "kill"))


def never_struck(history: History) -> None:
    history.remove(one(history, "struck", "short freeze"))


def closed_late(history: History) -> None:
    one(history, "closed")["seconds"] = 5.1


def never_closed(history: History) -> None:
    history.remove(one(history, "closed", "close"))


def fewer_calls(history: History) -> None:
    place = EPOCH["late"].number
    history.remove(
        [each for each in history if each["topic"] == "done" and each["epoch"] == place][-1]
    )


def more(name: str) -> Callable[[History], None]:
    def grow(history: History) -> None:
        for each in history:
            if each["topic"] == "end":
                each[name] += 64 << 20

    return grow


BAD: dict[str, tuple[Callable[[History], None], str]] = {
    "done twice": (done_twice, "done in place"),
    "wrong data": (wrong_data, "reported wrong data as success"),
    "success after failure": (success_after_failure, "after the failure succeeded"),
    "done without a partner": (done_without_a_partner, "that had partners"),
    "another error": (another_error, "CommTimeout, need CommPeerLost"),
    "told late": (told_late, "failed after 2.1 s"),
    "never told": (never_told, "0 failures, need 1"),
    "never struck": (never_struck, "faults seen: none"),
    "closed late": (closed_late, "close: NoneType after 5.1 s"),
    "never closed": (never_closed, "0 closes"),
    "fewer calls": (fewer_calls, "that had partners"),
    "descriptors": (more("descriptors"), "descriptors grew"),
    "threads": (more("threads"), "threads grew"),
    "memory": (more("resident"), "resident grew"),
}


def test_a_good_history_is_good() -> None:
    assert violations(SCHEDULE, a_good_history()) == []


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_history_is_found(kind: str) -> None:
    spoil, words = BAD[kind]
    history = a_good_history()
    spoil(history)
    found = violations(SCHEDULE, history)
    assert any(words in each for each in found), found


def test_a_schedule_is_its_seed() -> None:
    """Every ending is in it, first and last epochs end well, the spared rank is never killed."""
    for seed in range(20):
        schedule = replace(SCHEDULE, seed=seed, gathers=5000)
        assert schedule.epochs == replace(schedule).epochs
        assert schedule.epochs != replace(schedule, seed=seed + 1).epochs
        assert sum(epoch.calls for epoch in schedule.epochs) == 5000
        assert {epoch.ending for epoch in schedule.epochs} >= {"close", *STRIKES}
        assert {schedule.epochs[0].ending, schedule.epochs[-1].ending} == {"close"}
        kills = {epoch.victim for epoch in schedule.epochs if epoch.ending == "kill"}
        assert schedule.spared not in kills
