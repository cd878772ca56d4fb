"""``dcp-comm plan``: what it prints, as a table and as JSON, and what it refuses."""

import json
import sys
from pathlib import Path

import pytest

from dcp_comm import cli
from dcp_comm.cli import budget
from dcp_comm.cli.table import both, size, table
from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "COMMANDS", ("plan",))


def plan(words: str) -> int:
    """Run the command and return its exit code."""
    return cli.main(["plan", *words.split()])


def lines(text: str, *first: str) -> list[str]:
    """The lines whose first words these are, blanks between columns made one."""
    compact = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in compact if line.startswith(" ".join(first))]


def test_the_table_shows_bytes_and_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--rows 8192 --k 2048 --size 4") == 0
    printed = capsys.readouterr().out
    assert lines(printed, "vllm")[0] == (
        "vllm global 1,024 150,994,944 (144 MiB) 1,207,959,552 (1.125 GiB) no"
    )
    assert lines(printed, "gather")[0].startswith("gather global 1,024 67,108,864 (64 MiB)")
    assert lines(printed, "gather")[0].endswith("yes")
    assert "KV cache" not in printed
    assert max(map(len, printed.splitlines())) <= 125


def test_the_exchange_has_every_link_and_the_break_even(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert plan("--chunk-rows 8192") == 0
    printed = capsys.readouterr().out
    assert lines(printed, "gather")[1].startswith("gather 1 402,653,184 (384 MiB) 49,152 1,275")
    assert lines(printed, "gather")[1].endswith("3,558,803")
    assert lines(printed, "splitter")[2].endswith("never")


def test_a_model_and_memory_give_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    command = "--model glm-5.3 --memory 143.77 --weights 122.6 --reserve logits=536870912"
    assert plan(command) == 0
    printed = capsys.readouterr().out
    assert "13,682 bytes a token and rank" in printed
    assert "13.7% fewer tokens" in printed
    without = lines(printed, "without a merge 536,870,912 (512 MiB) 0 (0 B)")
    assert len(without) == 1
    assert without[0].endswith(" 0")
    assert lines(printed, "gather 536,870,912 (512 MiB) 67,108,864 (64 MiB)")


def test_a_model_gets_its_whole_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--model glm-5.3 --communicator 0 --next-n 4 --memory 143.77 --weights 121.8") == 0
    printed = capsys.readouterr().out
    assert lines(printed, "A rank of 4 that serves glm-5.3: 8,192 rows a step, 32 requests")
    assert lines(printed, "sharded vllm 768.0 MiB 118.0 MiB 128.5 MiB 0 MiB 768.0 MiB 13,682")
    assert lines(printed, "sharded gather 688.0 MiB 108.0 MiB 128.5 MiB 0 MiB 688.0 MiB 13,682")
    assert lines(printed, "replicated - 912.0 MiB 388.0 MiB 128.5 MiB 0 MiB 912.0 MiB 15,860")
    assert lines(printed, "split rows gather 1,011.0 MiB")
    assert lines(printed, "gather 1,024 67,108,864 (64 MiB) +6,131 +6,131")
    assert lines(printed, "splitter 2,048 44,056,576 (42.02 MiB) +7,815 +7,815")


@pytest.mark.parametrize("model", ["glm-5", "deepseek-v3.2"])
def test_without_memory_tokens_are_what_scratch_takes(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(f"--model {model}") == 0
    printed = capsys.readouterr().out
    (ours,) = lines(printed, "sharded splitter/owner")
    assert " 868 MiB " in ours
    assert ours.split()[-1].startswith("-")
    assert lines(printed, f"{model}: fp8_ds_mla")


def test_json_holds_the_budget_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--model glm-5 --size 8 --json") == 0
    printed = json.loads(capsys.readouterr().out)["budget"]
    assert printed["size"] == 8
    assert printed["communicator"] == 868 << 20
    assert [each["name"] for each in printed["designs"]][-2:] == ["replicated", "split rows"]


def test_measuring_needs_a_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--model glm-5 --measure") == 1
    assert "torchrun" in capsys.readouterr().err


def test_what_was_measured_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What connecting and preparing took, here said to be 5 MiB."""

    def fn(comm: Communicator) -> None:
        comm.footprint.by_stage["connect"] = 5 << 20
        monkeypatch.setattr(budget, "init", lambda: comm)
        assert plan("--model glm-5 --size 2 --measure") == 0

    run_ranks(fn, 1)
    assert " 5 MiB " in lines(capsys.readouterr().out, "sharded gather")[0]


def test_json_is_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--rows 64 --k 512 --size 2 --block 16 --json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["rows"], printed["k"], printed["size"]) == (64, 512, 2)
    assert printed["splitter"] == {
        "k": 512,
        "block": 16,
        "splitters": 32,
        "settled": 31,
        "window": 16,
    }
    assert [route["name"] for route in printed["routes"]] == [
        "vllm",
        "gather",
        "owner",
        "splitter",
        "splitter/owner",
    ]


def test_the_curve_compares_numbers_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--curve") == 0
    printed = capsys.readouterr().out
    assert lines(printed, "16,384 8,192 gather")[0] == (
        "16,384 8,192 gather 32 / 64 / 128 128 / 384 / 896 555 / 1,394 / 3,072"
        " 6,301 / 18,502 / 42,906 12,442 / 36,845 / 85,651"
    )
    assert len(lines(printed, "1,048,576 128")) == 5
    assert len(lines(printed, "decode")) == 20


def test_the_curve_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--curve --json") == 0
    points = json.loads(capsys.readouterr().out)
    assert len(points) == 3 * (7 + 4)
    assert points[0]["length"] == 16384
    assert points[-1]["length"] is None
    assert points[-1]["size"] == 8


def test_a_picture_needs_matplotlib(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["plan", "--plot", str(tmp_path / "plan.svg")]) == 2
    assert 'pip install "dcp-comm[plot]"' in capsys.readouterr().err


def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plan.svg"
    assert cli.main(["plan", "--plot", str(picture), "--json"]) == 0
    assert "<svg" in picture.read_text()
    assert json.loads(capsys.readouterr().out)["size"] == 4
    assert cli.main(["plan", "--plot", str(tmp_path / "no" / "plan.svg")]) == 2
    assert cli.main(["plan", "--plot", str(tmp_path / "plan.what")]) == 2
    assert "--plot" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--memory 80", "model or bytes_per_token"),
        ("--model glm-5.3 --bytes-per-token 5", "Pass one of them"),
        ("--model glm-5.3 --memory nan", "finite"),
        ("--measure", "give --model too"),
        ("--communicator 0", "give --model too"),
    ],
)
def test_options_that_make_no_plan_are_wrong_usage(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plan(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "words",
    ["--rows 0", "--size x", "--model other", "--utilization 2", "--reserve 5", "--reserve a=b"],
)
def test_options_that_do_not_parse_are_wrong_usage(words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        plan(words)
    assert ended.value.code == 2


def test_sizes_are_told_in_the_largest_unit() -> None:
    assert [size(each) for each in (0, 1023, 1024, 44_056_576, 1_207_959_552, 1 << 43)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "42.02 MiB",
        "1.125 GiB",
        "8192 GiB",
    ]
    assert both(150_994_944) == "150,994,944 (144 MiB)"


def test_tables_are_aligned() -> None:
    printed = table(("name", "count"), [("a", "1"), ("longer", "1,000")])
    assert printed.splitlines() == ["name    count", "a           1", "longer  1,000"]
    printed = table(("name", "of"), [("a", "b"), ("longer", "c")], left=2)
    assert printed.splitlines() == ["name    of", "a       b", "longer  c"]
