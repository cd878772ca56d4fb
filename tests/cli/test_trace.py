"""Lining up the traces of several ranks: who stopped where."""

import json
from pathlib import Path
from typing import Any

import pytest

from dcp_comm import cli
from dcp_comm.recorder import FORMAT


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other command's import is paid for."""
    monkeypatch.setattr(cli, "COMMANDS", ("trace",))


def call(rank: int, number: int, state: str = "done", name: str = "world") -> dict[str, Any]:
    return {
        "communicator": name,
        "rank": rank,
        "size": 3,
        "number": number,
        "op": "all_gather_into",
        "purpose": "merge",
        "step": number,
        "state": state,
        "started": 1.0,
        "ended": None,
        "tensors": [{"op": "all_gather_into", "dtype": "int64", "shape": [2, 4], "bytes": 64}],
    }


def write(folder: Path, rank: int, calls: list[dict[str, Any]], cause: str = "") -> str:
    path = folder / f"world.rank{rank}.json"
    trace = {
        "format": FORMAT,
        "communicator": "world",
        "rank": rank,
        "size": 3,
        "cause": ["CommTimeout", f"{cause}\nmore"] if cause else None,
        "calls": calls,
    }
    path.write_text(json.dumps(trace))
    return str(path)


def test_who_stopped_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    waiting = [call(0, 6), call(0, 7, "failed"), call(0, 99, name="another")]
    files = [
        write(tmp_path, 0, waiting, "rank 1 did not come"),
        write(tmp_path, 1, [call(1, 6)], "lost"),
    ]
    assert cli.main(["trace", *files]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "world: 2 of 3 ranks told"
    assert lines[1].split() == ["call", "rank", "0", "rank", "1"]
    assert lines[3].split()[0] == "7"
    assert lines[3].endswith("-")
    what = "all_gather_into int64[2, 4] merge"
    assert lines[4:] == [
        f"rank 0: stopped in call 7, {what}/7 failed; CommTimeout: rank 1 did not come",
        f"rank 1: STOPPED SHORT after call 6, {what}/6 done; CommTimeout: lost",
        "rank 2: no trace: it was killed, or is still alive",
    ]


def test_ranks_that_stopped_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write(tmp_path, rank, [call(rank, 3, "failed")], "late") for rank in range(3)]
    assert cli.main(["trace", *files]) == 0
    assert "STOPPED SHORT" not in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"format": "other"}', "\x00"])
def test_what_is_no_trace_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert cli.main(["trace", str(path)]) == cli.USAGE
    assert str(path) in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert cli.main(["trace", str(tmp_path / "none")]) == cli.USAGE
