"""Fit the model of costs to what ``bench merge --json`` wrote, and check ``auto`` against it.

Links are fitted to the collectives, a line of latency and bytes received for each backend and mode;
the device to the stages "pack + sort" and "select sorted runs + emit". Prints them as
`dcp_comm.topk.cost` has them, with their errors, then how far the model is from every merge, and
where ``auto`` took longer than the best strategy. Exits with 1 if that was by more than a tenth.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from dcp_comm.cli.bench.report import SCHEMA
from dcp_comm.cli.options import UsageError
from dcp_comm.cli.table import table
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.topk.cost import H200, Device, Link, Scheme, schemes

TOLERANCE = 1.10
SORT, SELECT = "pack + sort", "select sorted runs + emit"

Record = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """``us = start + x / rate``, fitted.

    Attributes:
        start: Microseconds at x = 0, never negative.
        rate: x in a microsecond.
        errors: Of each point, relative, signed.
    """

    start: float
    rate: float
    errors: tuple[float, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="of bench merge --json")


def run(arguments: argparse.Namespace) -> int:
    """Print the fit and the check.

    Raises:
        UsageError: A file is no report.
    """
    reports = [_read(path) for path in arguments.files]
    links = fit_links(each for report in reports for each in report["collectives"])
    device = fit_device([each for report in reports for each in report["stages"]])
    merges = [each for report in reports for each in report["merges"]]
    slower = list(behind(merges))
    print("\n\n".join(_sections(links, device, merges, slower)))
    return 1 if any(ratio > TOLERANCE for _, ratio, _ in slower) else 0


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Return the line with the least squares of relative errors through (x, us).

    Args:
        points: At least two different x; us above 0.
    """
    sums = [sum(x**n / us**2 for x, us in points) for n in range(3)]
    ones, xs = (sum(x**n / us for x, us in points) for n in range(2))
    start = (ones * sums[2] - xs * sums[1]) / (sums[0] * sums[2] - sums[1] ** 2)
    slope = (xs - start * sums[1]) / sums[2]
    if start < 0:
        start, slope = 0.0, xs / sums[2]
    slope = max(slope, 1e-12)
    return Line(start, 1 / slope, tuple((start + slope * x) / us - 1 for x, us in points))


def fit_links(collectives: Iterable[Record]) -> dict[tuple[str, str], Line]:
    """Return a line for every backend and mode: microseconds over bytes received."""
    points = defaultdict(list)
    for each in collectives:
        # busbw / algbw is (p - 1) / p, the share of the output that other ranks send.
        received = each["size"] * each["busbw"] / each["algbw"]
        points[each["backend"], each["mode"]].append((received, each["time"]))
    return {key: fit_line(found) for key, found in points.items() if len(found) > 1}


def fit_device(stages: Sequence[Record]) -> tuple[Line, Line] | None:
    """Return the lines of sorting over keys and of selection over bytes; None without stages."""
    sort, select = [], []
    for each in stages:
        subject, us = each["subject"], each["timing"]["us"]
        if each["stage"] == SORT:
            sort.append((float(subject["rows"] * subject["k"]), us))
        if each["stage"] == SELECT:
            gather = _schemes(subject, "local")["gather"]
            select.append((gather.touched_row * subject["rows"], us))
    if min(len({x for x, _ in points}) for points in (sort, select)) < 2:
        return None
    return fit_line(sort), fit_line(select)


def behind(merges: Iterable[Record]) -> Iterator[tuple[Record, float, str]]:
    """Yield every ``auto`` with how many times the best strategy's time it took, and which that is.

    Only merges of the same rows, output, mode and backend, in one piece, are compared.
    """
    groups: dict[tuple[object, ...], dict[str, Record]] = defaultdict(dict)
    for each in merges:
        if each["why"] and each["pieces"] == 1:
            groups[_place(each)][each["route"]] = each
    for routes in groups.values():
        auto = routes.pop("auto", None)
        if auto is not None and routes:
            best = min(routes.values(), key=_us)
            yield auto, _us(auto) / _us(best), best["route"]


def _read(path: Path) -> Record:
    try:
        found: Record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"bench fit: {path}: {error}. Write it by bench merge --json") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UsageError(f"bench fit: {path} is no report of schema {SCHEMA}. Measure again")
    return found


def _sections(
    links: dict[tuple[str, str], Line],
    device: tuple[Line, Line] | None,
    merges: Sequence[Record],
    slower: Sequence[tuple[Record, float, str]],
) -> Iterator[str]:
    for (backend, mode), line in links.items():
        yield f"{_link(backend, mode, line)!r}  # {_error(line.errors)}"
    fitted = H200 if device is None else _device(*device)
    if device is not None:
        sort, select = (_error(line.errors) for line in device)
        yield f"{fitted!r}  # sort: {sort}; selection: {select}"
    errors = list(_model_errors(merges, links, fitted))
    if errors:
        yield f"model against {len(errors)} merges: {_error(errors)}"
    if slower:
        yield _auto(slower)


def _auto(slower: Sequence[tuple[Record, float, str]]) -> str:
    late = [each for each in slower if each[1] > TOLERANCE]
    said = f"auto is within {TOLERANCE - 1:.0%} of the best in {len(slower) - len(late)} of "
    if not late:
        return f"{said}{len(slower)} cases"
    lines = [
        (
            *(f"{auto['subject'][name]}" for name in ("rows", "length", "ranks", "kind")),
            *(auto[name] for name in ("output", "backend", "mode")),
            f"{_us(auto):.1f}",
            best,
            f"{ratio:.2f} x",
        )
        for auto, ratio, best in late
    ]
    header = ("rows", "context", "ranks", "scores", "output", "backend", "mode", "us", "best", "")
    return f"{said}{len(slower)} cases, and behind in\n{table(header, lines, left=7)}"


def _model_errors(
    merges: Iterable[Record], links: dict[tuple[str, str], Line], device: Device
) -> Iterator[float]:
    """Yield the relative error of the model for every merge by a strategy that was asked for."""
    for each in merges:
        scheme = _schemes(each["subject"], each["output"]).get(each["route"])
        line = links.get((each["backend"], each["mode"]))
        if scheme is None or line is None or not each["why"]:
            continue
        rows = each["subject"]["rows"] * each["pieces"]
        chunk = min(rows, scheme.chunk_rows)
        link = _link(each["backend"], each["mode"], line)
        us = scheme.exchange_us(rows, link, chunk) + scheme.local_us(rows, device, chunk)
        yield us / _us(each) - 1


def _schemes(subject: Record, output: str) -> dict[str, Scheme]:
    k, size = subject["k"], subject["ranks"]
    return {each.name: each for each in schemes(k, size, splitter_shape(k, size), output)}


def _link(backend: str, mode: str, line: Line) -> Link:
    return Link(f"{backend} {mode}", round(line.start, 2), round(line.rate, 1))


def _device(sort: Line, select: Line) -> Device:
    return Device(
        "fitted",
        kernel_us=round(select.start, 2),
        bytes_per_us=round(select.rate, 1),
        sort_us=round(sort.start, 2),
        keys_per_us=round(sort.rate, 1),
    )


def _error(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"off by {median(sizes):.0%} in the middle, {max(sizes):.0%} at most"


def _place(each: Record) -> tuple[object, ...]:
    subject = tuple(sorted(each["subject"].items()))
    return subject, each["output"], each["mode"], each["backend"]


def _us(each: Record) -> float:
    return float(each["timing"]["us"])
