"""``bench merge`` on CUDA: everything replayed from graphs, and ranks that share the GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dcp_comm.cli.bench import alone
from dcp_comm.cli.bench.baselines import baselines
from dcp_comm.cli.bench.rows import KINDS, Shape
from dcp_comm.cli.bench.stages import STAGES
from tests.cli.bench_cases import small
from tests.processes import ROOT

pytestmark = pytest.mark.gpu


def test_every_stage_is_replayed_from_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """On several blocks of rows, with as many winners as engines ask for; none is left out."""
    monkeypatch.delenv("DCP_COMM_CHECK", raising=False)  # silent peers have no headers
    device = torch.device("cuda", 0)
    shapes = (Shape(130, 16_384),)
    found = alone.run(small(shapes=shapes, kinds=tuple(KINDS), k=2048, seconds=30.0), device)
    assert found.left_out == []
    assert {each.mode for each in found.stages} == {"graph"}
    wholes = 2 * 3 + 2
    assert len(found.stages) == len(KINDS) * (len(STAGES) + len(baselines(device)) + wholes)
    assert all(each.timing.us > 0 and each.share > 0 for each in found.stages)
    assert found.copy_gb_s > 100


def test_ranks_that_share_the_gpu_measure_every_route(tmp_path: Path) -> None:
    """Eager and from graphs, over NCCL; the times mean nothing, and it says so."""
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "dcp_comm", "bench", "merge", "--share-gpus", "--ranks", "2"]
    words = ["--shapes", "5x512", "--kinds", "plateau", "--k", "64", "--budget-seconds", "20"]
    more = ["--max-bytes", "4096", "--steps", "5", "--json", str(path)]
    done = subprocess.run(
        [*command, *words, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=115,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(path.read_text())
    assert {each["mode"] for each in found["merges"]} == {"eager", "graph"}
    assert len(found["merges"]) == 2 * (2 * 3 + 2 + 3)
    assert len(found["left_out"]) == 1
    assert "times mean nothing" in found["left_out"][0]
    assert set(found["verified"]) == set(found["communicator_bytes"])
