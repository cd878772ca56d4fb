"""Runs the tests of cases and lays out what was seen.

    python -m tests.catalogue.table            # C01 to C35
    python -m tests.catalogue.table B01 S2     # or others

Every line is one case: what was done, what had to come out, what came out, in how many seconds. A
test may say what it saw by pytest's ``record_property("seen", ...)``.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import pytest

from tests.catalogue import CASES
from tests.catalogue.faults import FAULTS
from tests.processes import ROOT

Outcomes = dict[str, list[str]]


class Collector:
    """Keeps what became of every test, how long it took, and what it says that it saw."""

    def __init__(self) -> None:
        self.outcomes: Outcomes = defaultdict(list)
        self.seconds: dict[str, float] = defaultdict(float)
        self.seen: Outcomes = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        self.seconds[name] += report.duration
        if report.when == "call" or report.outcome != "passed":
            expected = hasattr(report, "wasxfail")
            self.outcomes[name].append("expected to fail" if expected else report.outcome)
        if report.when == "teardown":
            self.seen[name] += [str(v) for k, v in report.user_properties if k == "seen"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and return 0 if all passed."""
    wanted = list(arguments or FAULTS)
    tests = dict.fromkeys(f"tests/{test}" for case in wanted for test in CASES[case].tests)
    collector = Collector()
    options = ["-q", "-q", "--no-header", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    code = pytest.main([*options, *(str(ROOT / test) for test in tests)], [collector])
    lines = rows_of_table(wanted, collector.outcomes, collector.seconds, collector.seen)
    sys.stdout.write("\n| case | fault | expected | seen | seconds |\n|---|---|---|---|---|\n")
    for line in lines:
        sys.stdout.write(f"| {' | '.join(line)} |\n")
    return int(code)


def rows_of_table(
    wanted: Sequence[str],
    outcomes: Mapping[str, list[str]],
    seconds: Mapping[str, float] | None = None,
    seen: Mapping[str, list[str]] | None = None,
) -> list[tuple[str, str, str, str, str]]:
    """A line a case."""
    found = []
    for name in wanted:
        case = CASES[name]
        own = tuple(f"tests/{test}" for test in case.tests)
        mine = [test for test in outcomes if test.startswith(own)]
        counts = Counter(outcome for test in mine for outcome in outcomes[test])
        words = [f"{count} {outcome}" for outcome, count in counts.items()] or ["nothing run"]
        said = sorted({each for test in mine for each in (seen or {}).get(test, [])})
        took = sum((seconds or {}).get(test, 0.0) for test in mine)
        told = "; ".join([", ".join(words), *said[-2:], *filter(None, [case.why_not])])
        found.append((name, case.what, case.want, told, f"{took:.1f}"))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
