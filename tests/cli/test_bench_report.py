"""What ``bench merge`` prints beside the numbers that it measured."""

from dataclasses import replace
from typing import Any

from dcp_comm.cli.bench import routes
from dcp_comm.cli.bench.report import LOCAL, QUERY_SPLIT, MergeTime, Report, StageTime, Subject
from dcp_comm.cli.bench.timing import Timing


def test_rivals_are_summed_from_logits_to_winners() -> None:
    """Each with its own local top-K; ours by the best strategy, and nan where a part is missing."""
    subject = Subject("random", 8, 64, 4, 2)
    line = Timing(1.0, 1.0, 1.0, 3, 1)

    def stage(name: str, us: float) -> StageTime:
        return StageTime(name, "", "graph", subject, replace(line, us=us), 1, 1.0, 0)

    def merge(route: str, output: str, us: float, **changes: Any) -> MergeTime:
        why = "" if route in (QUERY_SPLIT, *routes.SEED) else "asked for"
        told = MergeTime(route, output, "torch", "graph", subject, 1, line, 0, 0, 0, 0, why)
        return replace(told, timing=replace(line, us=us), **changes)

    found = Report({}, {}, 1.0)
    found.stages = [stage(name, us) for name, us in zip(LOCAL, (10, 20, 40), strict=True)]
    found.merges = [
        merge("gather", "local", 5),
        merge("splitter", "local", 3),
        merge("auto", "local", 1, pieces=4),
        merge("gather", "local", 1, mode="eager"),
        merge("seed, unchunked", "global", 1),
        merge(QUERY_SPLIT, "global", 7),
    ]
    *_, last = next(part for part in found.text().split("\n\n") if "replicated" in part).split("\n")
    assert last.split() == ["8", "64", "2", "random", "graph", "13.0", "nan", "27.0", "40.0"]


def test_merges_are_compared_with_the_seeds_route_of_the_same_place() -> None:
    """In several pieces with as many of its merges."""
    subject, line = Subject("random", 8, 64, 4, 2), Timing(10.0, 9.0, 11.0, 3, 1)
    seed = MergeTime(
        next(iter(routes.SEED)), "global", "torch", "graph", subject, 1, line, 0, 0, 0, 0, ""
    )
    fast = replace(seed, route="auto", timing=replace(line, us=5.0))
    step = replace(fast, pieces=4, timing=replace(line, us=8.0))
    other = replace(fast, mode="eager")
    found = Report({}, {}, 1.0, merges=[seed, fast, step, other])
    lines = next(part for part in found.text().split("\n\n") if "seed / it" in part).split("\n")
    ratios = [words.partition(" x ")[0].split()[-1] for words in lines[1:4]]
    assert ratios == ["1.00", "2.00", "5.00"]
    assert " x " not in lines[4]
    assert "auto, 4 pieces" in lines[3]
    assert "4 of 4 timings have fewer than 30 samples\n\nnothing left out" in found.text()
