"""What a communicator costs on its GPU, as far as the arithmetic goes."""

import re

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.footprint import Footprint
from dcp_comm.testing import run_ranks

MIB = 1 << 20


def test_what_torch_holds_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Free memory falls by 300 MiB while torch's allocator takes 100 of them."""
    free, held = iter([900, 600, 600, 590]), iter([50, 150, 150, 150])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free) * MIB, 1000 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: next(held) * MIB)
    footprint = Footprint(torch.device("cuda", 0))
    with footprint.stage("connect"):
        pass
    with footprint.stage("prepare"):
        pass
    assert footprint.by_stage == {"connect": 200 * MIB, "prepare": 10 * MIB}
    assert footprint.nbytes == 210 * MIB


def test_a_communicator_reports_what_it_is_and_costs() -> None:
    def report(comm: Communicator) -> str:
        comm.prepare(16)
        return comm.report()

    lines = run_ranks(report, 2)[1].splitlines()
    assert lines[0] == "Communicator('world', rank 1 of 2, backend fake, cpu, alive)"
    last = lines.pop()
    assert lines[1:] == ["library   -", "prepare   0.0 MiB of cpu"]
    assert re.fullmatch(r"last call \d+: barrier, done", last)
