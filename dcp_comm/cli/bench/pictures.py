"""The picture of ``bench merge --plot``: time over rows, a panel for each kind of scores."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from dcp_comm.cli import drawing
from dcp_comm.cli.bench.report import Report, Subject

Point = tuple[Subject, str, float]
"""Rows, what was timed on them, microseconds."""


def draw(path: str, report: Report) -> None:
    """Write it: merges in the last mode there is, or stages where there are no merges.

    Raises:
        UsageError: matplotlib is missing, or ``path`` cannot be written.
    """
    panels: dict[tuple[int, str], list[Point]] = defaultdict(list)
    for point in _merges(report) if report.merges else _stages(report):
        panels[point[0].ranks, point[0].kind].append(point)
    figure = drawing.figure("bench merge", 5.5 * max(1, len(panels)), 6.5)
    figure.suptitle(f"{report.machine['device']}, K = {report.options['k']:,}")
    axes = figure.subplots(1, max(1, len(panels)), squeeze=False, sharey=True)[0]
    for panel, ((ranks, kind), points) in zip(axes, sorted(panels.items()), strict=False):
        _fill(panel, points)
        panel.set(title=f"{ranks} ranks, {kind} scores", xlabel="rows", xscale="log", yscale="log")
    axes[0].set(ylabel="us")
    axes[-1].legend(fontsize="x-small")
    drawing.save("bench merge", figure, path)


def _fill(panel: Any, points: list[Point]) -> None:
    """Draw a line for everything that was timed; the fastest of equal rows where they repeat."""
    lines: dict[str, dict[int, float]] = defaultdict(dict)
    for subject, name, us in points:
        known = lines[name].get(subject.rows, us)
        lines[name][subject.rows] = min(known, us)
    for name, line in lines.items():
        rows = sorted(line)
        style = "--" if name.startswith(("seed", "query")) else "-"
        panel.plot(rows, [line[each] for each in rows], style, marker=".", label=name)


def _merges(report: Report) -> Iterator[Point]:
    mode = report.merges[-1].mode
    for each in report.merges:
        if each.mode == mode and each.pieces == 1:
            yield each.subject, f"{each.route}, {each.output}", each.timing.us


def _stages(report: Report) -> Iterator[Point]:
    for each in report.stages:
        yield each.subject, f"{each.stage} by {each.by}", each.timing.us
