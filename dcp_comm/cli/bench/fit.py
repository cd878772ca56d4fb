"""Fit the model of costs to what ``bench merge --json`` wrote, and check ``auto`` against it.

Prints links and device as `dcp_comm.topk.measured` has them, to be pasted there, with their errors
(`dcp_comm.cli.bench.model` says what is fitted to what); how far the model is from the merges; and
how often ``auto`` is within a tenth of the best strategy: as it was measured, as the tables in the
package would choose, and as what is printed would. Replays of CUDA graphs and eager calls count
apart: eager ones are the host's time. Exits with 1 where a measured ``auto`` was further behind in
a replay; eager calls are printed and do not count, as the model weighs the device and not the host.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import torch

from dcp_comm.cli.bench import judging, model, pasting
from dcp_comm.cli.bench.judging import TOLERANCE, Verdict
from dcp_comm.cli.bench.model import (
    Fitted,
    Record,
    all_rows,
    link_name,
    rows_of,
    scheme_of,
    summary,
)
from dcp_comm.cli.bench.report import SCHEMA
from dcp_comm.cli.options import UsageError
from dcp_comm.cli.table import table
from dcp_comm.topk import measured
from dcp_comm.topk.rates import Device, Link
from dcp_comm.topk.turns import turns

_FEW = 128

Costs = Callable[[Record, Record], tuple[Link, Device] | None]
"""What a merge of a report is modelled by; None where there is no model of it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="of bench merge --json")


def run(arguments: argparse.Namespace) -> int:
    """Print the fit and the check.

    Raises:
        UsageError: A file is no report, or they are of different devices.
    """
    reports = [_read(path) for path in arguments.files]
    devices = sorted({report["machine"]["device"] for report in reports})
    if len(devices) > 1:
        raise UsageError(f"bench fit: reports of {' and '.join(devices)}. Fit one after the other")
    mode = model.mode_of(reports)

    def misses(fitted: Fitted) -> int:
        verdicts, _ = _judged(reports, partial(_by_fit, fitted))
        return sum(each.late for each in verdicts if each.taken["mode"] == mode)

    fitted = model.fit(reports, misses)
    print("\n\n".join(_sections(reports, fitted)))
    late = [each for each in _measured(reports) if each.late and each.taken["mode"] == "graph"]
    return 1 if late else 0


def _read(path: Path) -> Record:
    try:
        found: Record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"bench fit: {path}: {error}. Write it by bench merge --json") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"bench fit: {path} is no report of schema {SCHEMA}. Measure again")
    return found


def _sections(reports: Sequence[Record], fitted: Fitted) -> Iterator[str]:
    yield pasting.tables(fitted, [report["machine"] for report in reports])
    lines = [*_errors(fitted), *_merges(reports, fitted)]
    if lines:
        yield "\n".join(lines)
    yield from _said("auto, as it was measured,", _measured(reports))
    yield from _said("auto, by the package's tables,", *_judged(reports, _by_tables))
    yield from _said("auto, by these,", *_judged(reports, partial(_by_fit, fitted)))


def _errors(fitted: Fitted) -> Iterator[str]:
    """Say how far the model is from collectives, a line a link, and from stages."""
    for name, errors in fitted.errors.items():
        link = fitted.links.get(name)
        what = "stages" if link is None else f"collectives over {pasting.constructor(link)}"
        yield f"model against {len(errors)} {what}: {summary(errors)}"


def _merges(reports: Sequence[Record], fitted: Fitted) -> Iterator[str]:
    """Say how far the model is from merges, a line a link; of eager ones how long they take."""
    fitted_mode = model.mode_of(reports)
    errors, times = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for report in reports:
        for each in report["merges"]:
            us, name = _us(each, _by_fit(fitted, report, each)), _link_of(report, each)
            if us and each["mode"] == fitted_mode:
                errors[name].append(us / judging.us(each) - 1)
            elif us and each["subject"]["rows"] <= _FEW:
                times[f"{each['route']} over {name}"].append(judging.us(each))
    for name, found in errors.items():
        yield f"model against {len(found)} merges over {name}: {summary(found)}"
    for name, found in times.items():
        yield f"eager {name}, up to {_FEW} rows, which is the host's time: {median(found):.0f} us"


def _measured(reports: Sequence[Record]) -> list[Verdict]:
    return [each for report in reports for each in judging.measured(report["merges"])]


def _judged(reports: Sequence[Record], costs: Costs) -> tuple[list[Verdict], int]:
    """Return the verdicts, and in how many cases there is none for want of a model."""
    found = list[Verdict | None]()
    for report in reports:
        most = max((all_rows(each) for each in report["merges"]), default=0)
        found += judging.chosen(report["merges"], partial(_taken, costs, report, most))
    verdicts = [each for each in found if each is not None]
    return verdicts, len(found) - len(verdicts)


def _taken(costs: Costs, report: Record, most: int, routes: dict[str, Record]) -> str | None:
    """Return which of the routes ``auto`` takes by those costs; None where there are none.

    Plans are made for the ``most`` rows of the report at once.
    """
    one = next(iter(routes.values()))
    known, schemes = costs(report, one), [scheme_of(each) for each in routes.values()]
    modelled = tuple(each for each in schemes if each is not None)
    if known is None or len(modelled) < len(schemes):
        return None
    found = turns(modelled, *known, None, most)
    return [scheme.name for first, scheme in found if first <= all_rows(one)][-1]


def _by_fit(fitted: Fitted, report: Record, merge: Record) -> tuple[Link, Device] | None:
    """Return what the fit has for a merge; None where it has nothing."""
    link = fitted.links.get(_link_of(report, merge))
    return None if link is None or fitted.device is None else (link, fitted.device)


def _by_tables(report: Record, merge: Record) -> tuple[Link, Device]:
    """Return what the package has, over the link that is not named."""
    machine = report["machine"]
    device = torch.device("cuda" if machine["cuda"] else "cpu")
    link = measured.link_between(device, merge["subject"]["ranks"], machine["environment"])
    return link, measured.device_of(device)


def _us(merge: Record, known: tuple[Link, Device] | None) -> float | None:
    scheme, (rows, chunk) = scheme_of(merge), rows_of(merge)
    return scheme.merge_us(rows, *known, chunk) if scheme and known else None


def _link_of(report: Record, merge: Record) -> str:
    return link_name(report, merge["subject"]["ranks"], merge["backend"], merge["mode"])


def _said(what: str, verdicts: Sequence[Verdict], unknown: int = 0) -> Iterator[str]:
    """Say how often a choice was good, for each mode; list where it was not."""
    if unknown:
        yield f"{what} is left out in {unknown} cases, of which there is no model"
    for mode in dict.fromkeys(each.taken["mode"] for each in verdicts):
        judged = [each for each in verdicts if each.taken["mode"] == mode]
        late = [each for each in judged if each.late]
        said = (
            f"{mode}: {what} is within {TOLERANCE - 1:.0%} of the best in"
            f" {len(judged) - len(late)} of {len(judged)} cases"
        )
        yield f"{said}, and behind in\n{_table(late)}" if late else said


def _table(late: Sequence[Verdict]) -> str:
    header = ("rows", "context", "ranks", "scores", "output", "backend", "us", "taken", "best", "")
    lines = [
        (
            *(f"{each.taken['subject'][name]}" for name in ("rows", "length", "ranks", "kind")),
            *(each.taken[name] for name in ("output", "backend")),
            f"{judging.us(each.taken):.1f}",
            each.taken["route"],
            each.best["route"],
            f"{each.ratio:.2f} x",
        )
        for each in late
    ]
    return table(header, lines, left=6)
