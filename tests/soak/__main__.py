"""The command line of the soak: runs it, checks it, and ends with 1 if anything was wrong."""

import argparse
import collections
import json
import sys
import time
from collections.abc import Sequence

from tests.processes import Report
from tests.soak.history import violations
from tests.soak.schedule import Schedule
from tests.soak.supervisor import Supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one soak and print what it was."""
    options = parser().parse_args(arguments)
    schedule = Schedule(options.seed, options.ranks, options.gathers, options.timeout)
    supervisor, started = Supervisor(schedule), time.monotonic()
    supervisor.run()
    wrong = supervisor.troubles + violations(schedule, supervisor.reports)
    facts = summary(schedule, supervisor.reports)
    facts |= {"seconds": round(time.monotonic() - started, 1), "violations": len(wrong)}
    print(json.dumps(facts, indent=2))
    for each in wrong[:50]:
        print(f"WRONG: {each}")
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    found = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    add = found.add_argument
    add("--ranks", type=int, default=2, help="default 2")
    add("--gathers", type=int, default=10_000, help="in all epochs (default 10000)")
    add("--seed", type=int, default=1, help="of everything that happens (default 1)")
    add("--timeout", type=float, default=5.0, help="seconds that a call may wait (default 5)")
    return found


def summary(schedule: Schedule, reports: Sequence[Report]) -> dict[str, object]:
    """What happened, in figures."""
    topics = collections.Counter(each["topic"] for each in reports)
    frozen = {epoch.number for epoch in schedule.epochs if epoch.ending == "freeze"}
    lost = [
        each["seconds"]
        for each in reports
        if each["topic"] == "failed" and each["epoch"] not in frozen
    ]
    samples = [each for each in reports if each["rank"] == schedule.spared and "resident" in each]
    youngest, oldest = samples[0], samples[-1]
    return {
        "seed": schedule.seed,
        "ranks": schedule.size,
        "epochs": len(schedule.epochs),
        "endings": collections.Counter(epoch.ending for epoch in schedule.epochs),
        "calls done": topics["done"],
        "merges among them": sum(
            schedule.is_merge(each["epoch"], each["call"])
            for each in reports
            if each["topic"] == "done"
        ),
        "failures told": topics["failed"],
        "faults seen": collections.Counter(
            each["kind"] for each in reports if each["topic"] == "struck"
        ),
        "slowest failure but of freezes, s": round(max(lost, default=0.0), 3),
        **{
            f"{name}, first epoch and end, rank {schedule.spared}": [youngest[name], oldest[name]]
            for name in ("descriptors", "threads", "resident")
        },
    }


if __name__ == "__main__":
    sys.exit(main())
