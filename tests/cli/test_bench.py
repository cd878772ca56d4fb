"""``dcp-comm bench collectives`` on two CPU ranks, and what its numbers mean."""

import json
import os
import subprocess
import sys

import pytest

from dcp_comm.cli import main, sharing
from dcp_comm.cli.bench import calls
from tests.processes import ROOT

COMMAND = ["bench", "collectives", "--device", "cpu", "--max-bytes", "4096", "--calls", "2"]


def run(*more: str) -> str:
    """Start it, and return what it prints."""
    command = [sys.executable, "-m", "dcp_comm", *COMMAND, *more]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_json_has_the_columns_of_nccl_tests_and_they_agree() -> None:
    found = json.loads(run("--json", "--ranks", "2"))
    assert found["host_us"] == {}
    assert {each["op"] for each in found["timings"]} == set(calls.PLACES)
    assert {(each["op"], each["place"]) for each in found["timings"]} == {
        (op, place) for op, places in calls.PLACES.items() for place in places
    }
    for each in found["timings"]:
        assert each["mode"] == "eager"
        assert each["size"] == 4 * each["count"]
        assert each["algbw"] == pytest.approx(each["size"] / each["time"] / 1e3)
        factor = 1.0 if each["op"] in ("all_reduce", "broadcast") else 0.5
        assert each["busbw"] == pytest.approx(factor * each["algbw"])


def test_the_table() -> None:
    lines = run("--ops", "broadcast").splitlines()
    assert lines[0].split()[:4] == ["op", "backend", "mode", "place"]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["broadcast", "torch", "eager", "in", "1024"],
        ["broadcast", "torch", "eager", "in", "4096"],
    ]


def test_an_unknown_operation_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "collectives", "--ops", "gather"]) == 2
    assert "--ops: 'gather' is none of all_gather_into" in capsys.readouterr().err


def test_sizes_quadruple() -> None:
    assert list(calls.sizes(1024, 65_536)) == [1024, 4096, 16_384, 65_536]
    assert list(calls.sizes(5, 4)) == []


def test_sharing_makes_every_rank_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_HOSTID", "NCCL_SOCKET_IFNAME", "NCCL_IB_DISABLE"):
        monkeypatch.setenv(name, "before")
    monkeypatch.setenv("RANK", "3")
    sharing.share_gpus()

    assert os.environ["NCCL_HOSTID"].endswith("3")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "lo"
