"""The same on GPUs of their own: NCCL goes over NVLink or PCIe, and no socket tells of a death."""

import sys
from collections.abc import Mapping

import pytest
import torch

from dcp_comm.testing.suite import BackendConformance
from tests.nccl.on_gpu import TIMEOUT, named, own_gpu, ranks, told
from tests.nccl.parts import PARTS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


class OnGpus(BackendConformance):
    """Two ranks, a GPU each."""

    device = "cuda"
    timeout = 60.0

    @classmethod
    def rank_environment(cls, rank: int) -> Mapping[str, str]:
        return own_gpu(rank)


class TestPyNccl(OnGpus):
    backend = "pynccl"


class TestCupy(OnGpus):
    backend = "cupy"


class TestTorch(OnGpus):
    backend = "torch"


@pytest.mark.parametrize("backend", ["pynccl", "cupy"])
def test_every_part_holds(backend: str) -> None:
    """None of them fails, and none finds a wrong result; `tests.nccl.test_gpu` looks closer."""
    for reports in told("parts", backend, 2, own_gpu):
        for each in reports:
            sys.stdout.write(f"{backend}: {each['name']}: {each['facts']}\n")
        facts = {name: named(reports, name) for name in PARTS}
        assert [name for name, found in facts.items() if "error" in found] == []
        assert facts["graphs_replay"] == {"eager": 0, "replayed": 0}
        assert facts["a_gather_replays_a_thousand_times"] == {"wrong": 0}
        assert facts["a_merge_replays"] == {"eager": 0, "replayed": 0}
        assert set(facts["neighbours_take_turns"].values()) == {True}


def test_adopted_communicators_work_and_live_on() -> None:
    for reports in told("adopts", "-", 2, own_gpu):
        assert [each["name"] for each in reports if "error" in each["facts"]] == []
        assert named(reports, "torch's group lives") == {"total": [2.0] * 3}


@pytest.mark.parametrize("scenario", ["killed_eager", "killed_replay"])
@pytest.mark.parametrize("backend", ["pynccl", "cupy"])
def test_a_killed_peer_is_noticed(scenario: str, backend: str) -> None:
    """By its process: the survivor's stream is set free long before the timeout."""
    with ranks(scenario, backend, 2, own_gpu) as processes:
        died = processes[1].next(60)["at"]
        reports = processes[0].rest(60)
        noticed = next(report for report in reports if report["name"] == "told")
        assert noticed["facts"]["error"] == "CommPeerLost"
        assert noticed["at"] - died < TIMEOUT / 2
        assert processes[0].wait(15) == 0, processes[0].errors()


def test_close_returns_while_a_captured_graph_lives() -> None:
    for reports in told("live_graph", "pynccl", 2, own_gpu):
        closing = next(report for report in reports if report["name"] == "close")
        assert closing["facts"] is None
        assert closing["seconds"] < 2.5


def test_a_peer_that_never_calls_is_a_timeout() -> None:
    reports = told("absent", "pynccl", 2, own_gpu)[0]
    assert named(reports, "check")["error"] == named(reports, "next")["error"] == "CommTimeout"
