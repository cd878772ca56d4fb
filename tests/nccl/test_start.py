"""Before ranks connect over NCCL: one rank a GPU, one NCCL, the same options, the right backend."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from dcp_comm import bootstrap, launch, registry
from dcp_comm.backends.pynccl import PyNcclBackend
from dcp_comm.deadline import Deadline
from dcp_comm.errors import (
    BackendUnavailable,
    CommArgumentError,
    CommMismatch,
    CommUsageError,
    DcpCommError,
)
from dcp_comm.nccl.codes import exclusive_gpu
from dcp_comm.nccl.options import NcclOptions
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.settings import Settings
from tests.nccl.conftest import Stub

UUIDS = ["11aa", "22bb"]


@pytest.fixture
def gpus(gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Two of them, as far as their names go."""

    def properties(device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(uuid=UUIDS[device.index])

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("NCCL_HOSTID", raising=False)
    return [torch.device("cuda", index) for index in range(2)]


def start(
    devices: list[torch.device], options: list[object], backend: str = "pynccl"
) -> list[BaseException]:
    """Bring up a rank a device, as far as it goes; returns why each went no further."""
    store, errors = dist.HashStore(), dict[int, BaseException]()

    def rank(number: int) -> None:
        meeting = Rendezvous(
            number, len(devices), store, "w", devices[number], 5.0, Deadline(5.0), None,
            options[number],
        )  # fmt: skip
        try:
            launch._choose(backend, meeting)
        except DcpCommError as error:
            bootstrap.tell(meeting, error)
            errors[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(devices))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return [errors[number] for number in sorted(errors)]


def test_ranks_on_gpus_of_their_own_may_go_on(
    stub: Callable[[int], Stub], gpus: list[torch.device]
) -> None:
    stub(22809)
    assert start(gpus, [None, None]) == []
    assert start(gpus, [NcclOptions(max_ctas=2)] * 2) == []


def test_two_ranks_on_one_gpu_are_refused_on_both(
    stub: Callable[[int], Stub], gpus: list[torch.device]
) -> None:
    stub(22809)
    errors = start([gpus[1], gpus[1]], [None, None])
    assert [type(error) for error in errors] == [CommUsageError] * 2
    for error in errors:
        assert "ranks 0 and 1 are both on GPU 22bb of host" in str(error)
        assert "NCCL_HOSTID" in str(error)


def test_another_host_id_makes_another_gpu(
    gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = exclusive_gpu(gpus[0])
    monkeypatch.setenv("NCCL_HOSTID", "rank 0")
    first = exclusive_gpu(gpus[0])
    monkeypatch.setenv("NCCL_HOSTID", "rank 1")
    assert len({alone, first, exclusive_gpu(gpus[0])}) == 3
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert exclusive_gpu(gpus[0]) == ""


def test_options_must_be_the_same_on_every_rank(
    stub: Callable[[int], Stub], gpus: list[torch.device]
) -> None:
    stub(22809)
    errors = start(gpus, [NcclOptions(max_ctas=2), NcclOptions(max_ctas=4)])
    assert [type(error) for error in errors] == [CommMismatch] * 2
    assert all("max_ctas=2" in str(error) and "max_ctas=4" in str(error) for error in errors)


@pytest.mark.parametrize(
    ("backend", "need"), [("pynccl", "NcclOptions or None"), ("torch", "None")]
)
def test_options_of_another_kind_are_refused(
    stub: Callable[[int], Stub], backend: str, need: str
) -> None:
    stub(22809)
    cls = registry.load(backend)
    with pytest.raises(CommArgumentError, match=f"options: got dict, need {need}"):
        launch._unless_options_fit(cls, {"max_ctas": 2})
    launch._unless_options_fit(cls, None)


def test_versions_must_be_the_same_on_every_rank(
    stub: Callable[[int], Stub], gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(22809)
    versions = {"cuda:0": "NCCL 2.28.9", "cuda:1": "NCCL 2.30.3"}
    monkeypatch.setattr(PyNcclBackend, "library", lambda device: versions[str(device)])
    errors = start(gpus, [None, None])
    assert [type(error) for error in errors] == [CommMismatch] * 2
    assert all(all(text in str(error) for text in versions.values()) for error in errors)


def test_a_library_that_cannot_be_used_is_unavailable_everywhere_with_the_reason(
    stub: Callable[[int], Stub], gpus: list[torch.device]
) -> None:
    stub(2408)
    errors = start(gpus, [None, None])
    assert [type(error) for error in errors] == [BackendUnavailable] * 2
    assert all("ncclCommInitRankConfig needs NCCL >= 2.14.0" in str(error) for error in errors)


def test_auto_takes_pynccl_on_a_gpu_and_torch_on_the_cpu(
    stub: Callable[[int], Stub], gpus: list[torch.device]
) -> None:
    stub(22809)
    assert registry.automatic(gpus[0]) == "pynccl"
    assert registry.automatic(torch.device("cpu")) == "torch"


def test_without_a_gpu_the_list_says_why_not() -> None:
    reasons = {info.name: info.reason for info in registry.list_backends()}
    if not torch.cuda.is_available():
        assert reasons["pynccl"] == reasons["cupy"] == "torch sees no CUDA device"


def test_settings_are_read_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCP_COMM_NCCL_LIBRARY", "/opt/libnccl.so.2")
    monkeypatch.setenv("DCP_COMM_TWO_NCCL", "1")
    settings = Settings.from_environment()
    assert (settings.nccl_library, settings.two_nccl) == ("/opt/libnccl.so.2", True)
    monkeypatch.setenv("DCP_COMM_TWO_NCCL", "yes")
    with pytest.raises(CommUsageError, match="DCP_COMM_TWO_NCCL: got 'yes', need one of 0, 1"):
        Settings.from_environment()
