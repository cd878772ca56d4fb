"""``bench merge`` on CPU: every stage, baseline and route is right, told whole, or not told."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcp_comm.cli import main
from dcp_comm.cli.bench import alone, baselines, routes, timing
from dcp_comm.cli.bench.peers import without_peers
from dcp_comm.cli.bench.report import QUERY_SPLIT
from dcp_comm.cli.bench.rows import KINDS, Shape
from dcp_comm.cli.bench.stages import STAGES, Batch, Stage
from dcp_comm.cli.bench.timing import Clock
from dcp_comm.cli.bench.work import WrongRows, measure
from dcp_comm.communicator import Communicator
from dcp_comm.kernels import torch_ops
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.testing import run_ranks
from dcp_comm.topk.cost import schemes
from tests.cli.bench_cases import CPU, question, small
from tests.processes import ROOT

EVERY = (*STAGES, *baselines.baselines(CPU))
TINY = ["bench", "merge", "--device", "cpu", "--k", "16", "--budget-seconds", "1"]


@pytest.mark.parametrize("stage", EVERY, ids=lambda stage: f"{stage.name} by {stage.by}")
def test_every_stage_is_right_on_all_kinds_and_wrong_if_it_does_nothing(stage: Stage) -> None:
    for kind in KINDS:
        work = stage.prepare(Batch.of(question(kind)))
        measure(work, Clock(CPU), "eager", 0)
        assert stage.row_bytes(question(kind)) > 0
        if work.outputs:
            with pytest.raises(WrongRows):
                measure(replace(work, call=lambda: None), Clock(CPU), "eager", 0)


@pytest.mark.parametrize("name", ["emit", "prefix_lengths", "copy_windows"])
def test_a_broken_kernel_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that leaves zeros in the first row, or says so of the first rank."""
    right = getattr(torch_ops, name)

    def broken(first: Any, *others: Any, **options: Any) -> Any:
        done = right(first, *others, **options)
        (first if done is None else done)[0] = 0
        return done

    batch = Batch.of(question("random"))
    split = next(each for each in STAGES if each.name.startswith("splitter"))
    work = split.prepare(batch)
    monkeypatch.setattr(torch_ops, name, broken)
    with pytest.raises(WrongRows):
        measure(work, Clock(CPU), "eager", 0)


def test_baselines_count_the_rows_where_ties_fell_otherwise() -> None:
    """On a plateau torch.topk may take any of the ties; where nothing ties it cannot."""
    for stage in baselines.baselines(CPU):
        work = stage.prepare(Batch.of(question("random")))
        work.call()
        assert work.inexact() == 0
    select = next(each for each in baselines.baselines(CPU) if each.name == "seed: select")
    work = select.prepare(Batch.of(question("plateau", rows=50)))
    work.call()
    assert work.wrong() == 0
    assert 0 <= work.inexact() <= 50


@pytest.mark.parametrize("output", ["global", "local"])
@pytest.mark.parametrize("name", list(routes.OURS))
def test_our_routes_are_right_and_know_when_not(name: str, output: str) -> None:
    """In both orders and several pieces, on ranks that hold unequal parts."""
    if output not in routes.outputs_of(name, ("global", "local")):
        pytest.skip("the strategy does not have it")
    asked = question()

    def fn(comm: Communicator) -> tuple[int, int, int]:
        wrong = 0
        for order, pieces in (("score", 1), ("position", 1), ("score", 3)):
            part = asked.part(comm.rank)
            work = routes.ours(comm, asked, part, name, output, order, pieces).work
            work.call()
            wrong += work.wrong()
        ids, counts, _ = work.outputs
        ids[0, 0] += 1
        moved, ids[0, 0] = work.wrong(), ids[0, 0] - 1
        counts[1] -= 1
        return wrong, moved, work.wrong()

    assert run_ranks(fn, asked.size) == [(0, 1, 1)] * asked.size


@pytest.mark.parametrize("name", [*routes.SEED, QUERY_SPLIT])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_rivals_are_right_and_known_when_not(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(routes.SEED, next(iter(routes.SEED)), 3)
    asked = question(rows=rows)

    def fn(comm: Communicator) -> tuple[int, int]:
        if name == QUERY_SPLIT:
            route = routes.query_split(comm, asked)
        else:
            route = routes.seed(comm, asked, asked.part(comm.rank), name)
        route.work.call()
        right = route.work.wrong()
        route.work.outputs[-1].flatten()[0] = 66
        return right, route.work.wrong()

    assert run_ranks(fn, asked.size) == [(0, 1)] * asked.size


def test_without_its_peers_a_rank_merges_as_with_them() -> None:
    """Again and again, on poisoned outputs, and for itself alone."""
    asked, told = question(), []

    def merge(comm: Communicator) -> Any:
        rows = asked.shape.rows
        part = asked.part(comm.rank)
        route = routes.ours(comm, asked, part, "splitter/owner", "local", "score", chunk_rows=rows)
        route.work.call()

        def alone() -> None:
            told.append(comm.rank)
            measure(route.work, Clock(CPU), "eager", 0)
            part.logits.zero_()
            route.work.call()
            told.append(route.work.wrong())

        return alone

    without_peers(asked.size, CPU, merge)
    assert told[0] == 0
    assert told[1] > 0


def test_one_device_reports_every_stage_of_every_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("WANTED", "_WARM_UP", "_SAMPLE_SECONDS"):
        monkeypatch.setattr(timing, name, 0)
    wanted = small(kinds=("random", "plateau"), sizes=(2, 3), local=(Shape(2, 30),), seconds=60.0)
    found = alone.run(wanted, CPU)
    assert found.left_out == []
    told = {(each.stage, each.by, each.subject) for each in found.stages}
    assert len(told) == len(found.stages)
    own = {each for each in EVERY if not each.ranks}
    wholes = 2 * 3 + 2  # gather, owner and auto have both outputs
    assert len(told) == 2 * len(own) + 4 * (len(EVERY) + wholes)
    for each in found.stages:
        assert each.timing.us > 0
        assert each.nbytes > 0
        assert each.share > 0
        assert each.inexact == 0 or "torch" in each.by
    fields = json.loads(json.dumps(found.to_dict()))
    assert fields["schema"] == 1
    assert fields["stages"][0]["subject"].keys() == {"kind", "rows", "length", "k", "ranks"}
    assert found.text().count("whole local part, splitter, local") == 4


def test_what_does_not_fit_the_budget_is_told() -> None:
    found = alone.run(small(seconds=-1.0), CPU)
    assert found.stages == []
    assert found.left_out == ["3x40, plateau, 2 ranks: no time left"]
    assert found.text().endswith("left out:\n3x40, plateau, 2 ranks: no time left")


def test_the_command_writes_what_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    more = ["--shapes", "3x64", "--kinds", "skewed", "--size", "2", "--only", "sort"]
    assert main([*TINY, *more, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert {each["stage"] for each in found["stages"]} == {
        "sort",
        "pack unsorted",
        "pack + sort",
        "select unsorted lists",
        "select unsorted lists + emit",
        "select sorted runs + emit",
    }
    assert found["options"]["shapes"] == [{"rows": 3, "length": 64}]
    assert found["machine"]["torch"]
    assert "pack + sort" in capsys.readouterr().out


def test_a_wrong_result_is_not_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither printed nor written, and the exit code says so."""
    right = torch_ops.emit

    def broken(ids: Any, *others: Any, **options: Any) -> None:
        right(ids, *others, **options)
        ids[0, 0] += 1

    monkeypatch.setattr(torch_ops, "emit", broken)
    path = tmp_path / "found.json"
    assert main([*TINY, "--shapes", "3x64", "--size", "2", "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "rows are wrong; nothing is timed" in said.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shapes", "3x8"], "fewer tokens than K = 16"),
        (["--json", "/nowhere/at/all.json"], "no folder that exists"),
    ],
)
def test_options_that_cannot_be_served(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--shapes", "3"], ["--kinds", "flat"], ["--size", "0"]])
def test_options_that_do_not_parse(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*TINY, *words])
    assert ended.value.code == 2


def test_a_picture_needs_matplotlib_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*TINY, "--plot", str(tmp_path / "merge.svg")]) == 2
    said = capsys.readouterr()
    assert 'pip install "dcp-comm[plot]"' in said.err
    assert said.out == ""


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "merge.svg"
    more = ["--shapes", "3x64,5x64", "--size", "2", "--only", "seed"]
    assert main([*TINY, *more, "--plot", str(picture)]) == 0
    assert "<svg" in picture.read_text()


def test_two_ranks_report_every_route(tmp_path: Path) -> None:
    """Started by the command itself; bytes as the model has them, every number above 0."""
    path = tmp_path / "found.json"
    more = ["--ranks", "2", "--shapes", "5x64", "--kinds", "plateau", "--outputs", "local"]
    command = [
        sys.executable,
        "-m",
        "dcp_comm",
        *TINY,
        *more,
        "--max-bytes",
        "1024",
        "--steps",
        "3",
    ]
    done = subprocess.run(
        [*command, "--json", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert found["left_out"] == []
    assert found["verified"] == {"torch": ["gather", "owner", "splitter"]}
    assert found["interleaved"] == 3
    assert len(found["collectives"]) == 2
    assert len(found["stages"]) == 3
    assert len(found["merges"]) == 5 + 3
    for each in found["merges"]:
        subject = each["subject"]
        assert each["timing"]["us"] > 0
        assert each["scratch_bytes"] > 0
        assert each["backend"] == "torch"
        assert bool(each["why"]) == (each["route"] in routes.OURS)
        found_scheme = {
            scheme.name: scheme
            for scheme in schemes(subject["k"], 2, splitter_shape(subject["k"], 2), each["output"])
        }.get(each["route"])
        if found_scheme is not None:
            assert each["received_bytes"] == found_scheme.received_bytes(subject["rows"])
    assert "merge exactly" in done.stdout
    assert "splitter/owner" in done.stdout
