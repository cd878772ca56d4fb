"""``bench fit``: links and devices found again from reports, and ``auto`` judged."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcp_comm.cli import main
from dcp_comm.cli.bench import judging, model, pasting
from dcp_comm.cli.bench.model import Fitted, fit, link_name, ranks_of
from dcp_comm.topk import measured
from dcp_comm.topk.rates import Device, Link, Pace
from tests.cli.fit_cases import (
    DEVICE,
    EAGER,
    LINK,
    MACHINE,
    collective,
    merge,
    merges,
    report,
    schemes_of,
    stages,
)


def written(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps(report(**changes)))
    return str(path)


def no_misses(_: Fitted) -> int:
    return 0


def figures(of: Link | Device) -> Iterator[tuple[str, float]]:
    for name, value in vars(of).items():
        if isinstance(value, Pace):
            yield from ((f"{name}.{part}", number) for part, number in vars(value).items())
        elif name != "name":
            yield name, value


def assert_near(found: Link | Device, wanted: Link | Device) -> None:
    """Every figure, to the last but one that is printed."""
    assert dict(figures(found)) == pytest.approx(dict(figures(wanted)), rel=1e-3, abs=0.02)


def test_links_and_devices_are_found_again() -> None:
    """From everything together, and from merges between ranks without stages."""
    told = report()
    told["collectives"] += [collective(1 << bit, EAGER, "eager") for bit in range(10, 28)]
    found = fit([told], no_misses)
    assert found.device is not None
    assert_near(found.device, DEVICE)
    assert_near(found.links["p2p-4"], LINK)
    assert found.links["p2p-4-eager"] == EAGER
    found = fit([report(stages=[])], no_misses)
    assert found.device is not None
    for each in schemes_of("local").values():
        link, chunk = found.links["p2p-4"], each.chunk_rows
        us = each.merge_us(5000, link, found.device, chunk)
        assert us == pytest.approx(each.merge_us(5000, LINK, DEVICE, chunk), rel=2e-3)


def test_what_is_straight_stays_so() -> None:
    straight = Link("p2p-4", 12.0, 200_000.0)
    collectives = [collective(1 << bit, straight) for bit in range(10, 28)]
    found = fit([report(collectives=collectives, stages=[], merges=[])], no_misses)
    assert found.device is None
    assert found.links == {"p2p-4": straight}


def test_stages_alone_tell_of_a_device_and_of_no_link() -> None:
    found = fit([report(collectives=[], merges=[])], no_misses)
    assert not found.links
    assert found.device is not None
    assert_near(found.device, DEVICE)
    only = [each for each in stages() if each["stage"] in model.STAGES]
    assert fit([report(collectives=[], merges=[], stages=only)], no_misses).device is None


def test_a_rank_by_itself_has_a_link_that_is_free() -> None:
    """Its merges send nothing, so that no start and no rate of one comes out."""
    told = merges()
    for each in told:
        each["subject"]["ranks"] = 1
    found = fit([report(collectives=[], merges=told)], no_misses)
    assert found.links["p2p-1"].us(10**6) == pytest.approx(0, abs=0.01)


def test_errors_are_relative_and_nothing_is_below_0() -> None:
    """A large time counts less than a small one, and what would start below 0 starts there."""

    def line(*points: tuple[int, float]) -> Link:
        told = [collective(size, LINK, time=us) for size, us in points]
        return fit([report(collectives=told, stages=[], merges=[])], no_misses).links["p2p-4"]

    assert line((1000, 10.0), (1000, 30.0)).us(750) == pytest.approx(12, abs=0.01)
    below = line((10_000, 1.0), (20_000, 4.0))
    assert (below.latency_us, below.bulk_latency_us) == (0.0, math.inf)


def test_the_bend_by_which_auto_is_right_comes_first() -> None:
    """Then that of the least errors."""
    straight = fit([report()], lambda found: int(found.links["p2p-4"].bulk_latency_us < math.inf))
    assert straight.links["p2p-4"].bulk_latency_us == math.inf
    assert fit([report()], no_misses).links["p2p-4"].bulk_latency_us < math.inf


def test_links_are_named_by_what_they_are() -> None:
    told = report()
    assert link_name(told, 4, "pynccl", "graph") == "p2p-4"
    assert link_name(told, 8, "pynccl", "eager") == "p2p-8-eager"
    assert link_name(told, 2, "cupy", "eager") == "p2p-2-eager cupy"
    assert [ranks_of(name) for name in ("p2p-4", "no-p2p-16-eager", "cpu-2 torch")] == [4, 16, 2]
    through_host = {**MACHINE, "environment": {"NCCL_P2P_DISABLE": "1"}}
    assert link_name(report(machine=through_host), 2, "pynccl", "graph") == "no-p2p-2"
    unset = {**MACHINE, "environment": {"NCCL_P2P_DISABLE": ""}}
    assert link_name(report(machine=unset), 2, "pynccl", "graph") == "p2p-2"
    cpu = {**MACHINE, "cuda": "", "environment": {}}
    assert link_name(report(machine=cpu), 2, "pynccl", "eager") == "cpu-2"


def test_auto_is_compared_with_the_best_of_the_same_place_alone() -> None:
    told = [
        merge("gather", 32, 50.0),
        merge("splitter", 32, 40.0),
        merge("auto", 32, 50.0),
        merge("auto", 32, 900.0, pieces=64),
        merge("seed, unchunked", 32, 1.0, why=""),
        merge("splitter", 32, 2.0, mode="eager"),
        merge("splitter", 64, 2.0),
        merge("gather", 32, 2.0, output="global"),
        merge("auto", 32, 2.0, output="slots"),
    ]
    (verdict,) = judging.measured(told)
    assert verdict.taken is told[2]
    assert verdict.best is told[1]
    assert verdict.ratio == pytest.approx(1.25)
    assert verdict.late


def test_a_model_is_judged_by_what_its_choice_was_measured_to_take() -> None:
    told = [merge("gather", 32, 50.0), merge("splitter", 32, 40.0), merge("auto", 32, 1.0)]
    (verdict,) = judging.chosen(told, min)
    assert verdict is not None
    assert (verdict.taken, verdict.best) == (told[0], told[1])
    assert list(judging.chosen(told, lambda routes: None)) == [None]


def test_the_command_prints_what_the_package_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python that makes the same tables, errors, and the three ways to judge ``auto``."""
    assert main(["bench", "fit", written(tmp_path / "a.json")]) == 0
    tables, errors, *verdicts = capsys.readouterr().out.strip().split("\n\n")
    assert tables.splitlines()[0] == "# device H200, driver 1.2, torch 2, nccl 2.28"
    names: dict[str, Any] = {"Device": Device, "Link": Link, "Pace": Pace}
    exec(tables, names)
    assert_near(names["GPU"], DEVICE)
    assert_near(names["P2P"][4], LINK)
    assert [line.split(":")[-1] for line in errors.splitlines()] == [
        " off by 0% in the middle, 0% at most"
    ] * 3
    assert "model against 30 merges over p2p-4" in errors
    said = "is within 10% of the best in 10 of 10 cases"
    assert verdicts[0] == f"graph: auto, as it was measured, {said}"
    assert verdicts[1].startswith("graph: auto, by the package's tables, is within 10% of")
    assert verdicts[2] == f"graph: auto, by these, {said}"


def test_the_packages_tables_are_printed_as_they_stand() -> None:
    """So that pasting changes figures alone."""
    source = Path(measured.__file__).read_text()
    for link in (*measured.P2P.values(), *measured.NO_P2P.values(), *measured.EAGER):
        assert f"{pasting.constructor(link)},\n" in source
    printed = pasting.tables(Fitted({}, measured.GPU, {}), [])
    assert printed.startswith("GPU = Device(\n")
    assert printed in source


def test_eager_calls_of_a_gpu_count_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are the host's time: stated as such, and no part of the fit."""
    eager = [
        {**each, "mode": "eager", "timing": {"us": 1000.0 + 100 * (each["route"] == "auto")}}
        for each in merges()
    ]
    told = {"merges": merges() + eager, "collectives": report()["collectives"]}
    told["collectives"] += [collective(1 << bit, EAGER, "eager") for bit in range(10, 28)]
    assert main(["bench", "fit", written(tmp_path / "a.json", **told)]) == 0
    said = capsys.readouterr().out
    assert (
        "eager gather over p2p-4-eager, up to 128 rows, which is the host's time: 1000 us" in said
    )
    assert "model against 20 merges over p2p-4: off by 0%" in said
    assert "eager: auto, as it was measured, is within 10% of the best in 5 of 5 cases" in said
    assert "graph: auto, as it was measured, is within 10% of the best in 5 of 5 cases" in said
    assert "EAGER = (\n    Link(" in said


def test_reports_of_one_machine_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stages of one device, collectives and merges of a launch; each may be missing."""
    one = written(tmp_path / "a.json", merges=[], collectives=[])
    other = written(tmp_path / "b.json", stages=[])
    assert main(["bench", "fit", one, other]) == 0
    assert "stages: off by 0%" in capsys.readouterr().out
    assert main(["bench", "fit", one]) == 0
    assert "Link" not in capsys.readouterr().out
    machine = {**MACHINE, "device": "B200", "environment": {}}
    assert main(["bench", "fit", one, written(tmp_path / "c.json", machine=machine)]) == 2
    assert "reports of B200 and H200. Fit one after the other" in capsys.readouterr().err


def test_places_of_two_reports_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same rows with and without peer-to-peer are two cases, over links of their own."""
    slow = replace(LINK, name="no-p2p-4", latency_us=15.0, bytes_per_us=20_000.0)
    slow = replace(slow, bulk_bytes_per_us=25_000.0)
    machine = {**MACHINE, "environment": {"NCCL_P2P_DISABLE": "1"}}
    told = {
        "machine": machine,
        "collectives": [collective(1 << bit, slow) for bit in range(10, 28, 2)],
        "merges": merges(link=slow),
    }
    paths = [written(tmp_path / "a.json"), written(tmp_path / "b.json", **told)]
    assert main(["bench", "fit", *paths]) == 0
    said = capsys.readouterr().out
    assert "NO_P2P = {\n    4: Link(" in said
    assert "graph: auto, by these, is within 10% of the best in 15 of 15 cases" in said


def test_an_auto_that_is_behind_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = [merge("gather", 7, 10.0), merge("auto", 7, 11.5)]  # far from what the model has
    told = merges() + merges("global") + slow
    assert main(["bench", "fit", written(tmp_path / "a.json", merges=told)]) == 1
    said = capsys.readouterr().out
    assert "measured, is within 10% of the best in 10 of 11 cases, and behind in" in said
    assert re.search(r"11\.5 +auto +gather +1\.15 x", said)


def test_eager_calls_that_are_behind_are_printed_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And where nothing was fitted to them, there is nothing to be judged by."""
    eager = [merge("gather", 7, 10.0, mode="eager"), merge("auto", 7, 11.5, mode="eager")]
    told = merges() + merges("global") + eager
    assert main(["bench", "fit", written(tmp_path / "a.json", merges=told)]) == 0
    said = capsys.readouterr().out
    assert "eager: auto, as it was measured, is within 10% of the best in 0 of 1 cases" in said
    assert "auto, by these, is left out in 1 cases, of which there is no model" in said
    assert "eager: auto, by these" not in said


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 0}', None])
def test_no_report(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    assert main(["bench", "fit", str(path)]) == 2
    assert "a.json" in capsys.readouterr().err
