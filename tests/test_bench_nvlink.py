"""``scripts/bench_nvlink``: what it starts, what it keeps, and that a lost launch is told."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "bench_nvlink"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module; nothing is left in the folder of scripts."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec = spec_from_loader("bench_nvlink", SourceFileLoader("bench_nvlink", str(SCRIPT)))
    assert spec is not None
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def run(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, out: Path, *, lose: str = "never"
) -> tuple[int, list[tuple[list[str], dict[str, str], float]]]:
    """Run it with launches that only write their file, but for those of one name."""
    started = []

    def bench(words: list[str], variables: dict[str, str], timeout: float) -> str:
        started.append((words, variables, timeout))
        if words[0] == "merge" and lose not in words[words.index("--json") + 1]:
            Path(words[words.index("--json") + 1]).write_text("{}")
        return f"tables of {words[0]}"

    monkeypatch.setattr(script, "bench", bench)
    words = ["--ranks", "2,4", "--budget-seconds", "300", "--out", str(out), "--", "--k", "64"]
    monkeypatch.setattr(sys, "argv", ["bench_nvlink", *words])
    return script.main(), started


def test_every_number_of_ranks_is_measured_with_and_without_peers(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, started = run(script, monkeypatch, tmp_path / "new")
    assert code == 0
    merges = [each for each in started if each[0][0] == "merge"]
    told = [(words[2], words[4], variables) for words, variables, _ in merges]
    off = {"NCCL_P2P_DISABLE": "1"}
    assert told == [("2", "200", {}), ("2", "100", off), ("4", "200", {}), ("4", "100", off)]
    assert all(words[-2:] == ["--k", "64"] for words, _, _ in merges)
    assert all(timeout > float(words[4]) for words, _, timeout in merges)
    assert [words[0] for words, _, _ in started] == ["merge", "fit"] * 4
    said = (tmp_path / "new" / "merge-4-no-p2p.txt").read_text()
    assert said == "tables of merge\n\ntables of fit"


def test_a_launch_that_fails_is_told_and_the_others_go_on(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file of an earlier run does not pass for its result."""
    (tmp_path / "merge-2-direct.json").write_text("{}")
    code, started = run(script, monkeypatch, tmp_path, lose="merge-2-direct")
    assert code == 1
    assert len(started) == 4 + 3
    assert "merge-2-direct.json was not written" in capsys.readouterr().err


def test_what_a_launch_says_is_kept_and_bounded(script: ModuleType) -> None:
    said = script.bench(["merge", "--k", "0"], {"DCP_COMM_CHECK": "0"}, 60)
    assert "no whole number in 1 .. 4096" in said
    assert script.bench(["merge", "--help"], {}, 0.01).endswith("ended after 0 s")
