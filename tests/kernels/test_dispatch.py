"""What does a merge's arithmetic, and what it says of the choice; here without a GPU."""

import importlib
from types import ModuleType

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import BackendUnavailable, CommUsageError
from dcp_comm.kernels import dispatch
from dcp_comm.kernels.cuda import compiler
from dcp_comm.kernels.cuda.primitives import CAPACITIES
from dcp_comm.kernels.cuda.unavailable import KernelsUnavailable
from dcp_comm.kernels.primitives import Primitives
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from tests.kernels.emulated import Loads
from tests.kernels.nvrtc import missing

GPU = torch.device("cuda", 0)
K, SIZE = 2048, 4

needs_nvrtc = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """In the place of one that needs a driver."""
    made = Loads()
    monkeypatch.setattr(dispatch, "cuda_launcher", lambda index: made)
    monkeypatch.delenv("DCP_COMM_KERNELS", raising=False)
    return made


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cuda-core."""

    def refuse(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.setattr(compiler, "_cuda", compiler._cuda.__wrapped__)


def chosen(k: int = K, size: int = SIZE, block: int | None = None) -> Primitives:
    return dispatch.primitives_for(GPU, k, size, block)


@needs_nvrtc
@pytest.mark.parametrize("asked", ["", "cuda"])
@pytest.mark.parametrize(("k", "size"), [(8, 1), (2048, 4), (4096, 8), (513, 8)])
def test_kernels_where_they_can_be_had(
    k: int, size: int, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCP_COMM_KERNELS", asked)
    assert (chosen(k, size).name, chosen(k, size).why) == ("cuda", "as nothing else was asked for")


@pytest.mark.parametrize("asked", ["", "cuda", "torch"])
def test_cpus_have_torch_operations_alone(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCP_COMM_KERNELS", asked)
    found = dispatch.primitives_for(torch.device("cpu"), K, SIZE, None)
    assert (found.name, found.why) == ("torch", "the only way on this device")


def test_torch_operations_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCP_COMM_KERNELS", "torch")
    assert (chosen().name, chosen().why) == ("torch", "DCP_COMM_KERNELS asks for it")
    monkeypatch.setenv("DCP_COMM_KERNELS", "triton")
    with pytest.raises(CommUsageError, match=r"DCP_COMM_KERNELS: got 'triton', need one of cuda, "):
        chosen()


@pytest.mark.parametrize(
    ("k", "size", "block", "need"),
    [
        (7, 4, None, "k of 8 to 4096, not 7"),
        (4097, 4, None, "k of 8 to 4096, not 4097"),
        (2048, 9, None, "at most 8 ranks, not 9"),
        (4096, 8, 1, "options.block closer to 32, not 1"),
        (4096, 8, 4096, "options.block closer to 32, not 4096"),
    ],
)
def test_sizes_that_kernels_do_not_have(
    k: int, size: int, block: int | None, need: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (chosen(k, size, block).name, chosen(k, size, block).why) == (
        "torch",
        f"CUDA kernels need {need}",
    )
    monkeypatch.setenv("DCP_COMM_KERNELS", "cuda")
    words = rf"TopKMerge: DCP_COMM_KERNELS: got 'cuda', need {need}\. Unset DCP_COMM_KERNELS for"
    with pytest.raises(BackendUnavailable, match=words):
        chosen(k, size, block)


def test_a_missing_compiler_is_explained_or_refused(
    bare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = r'cuda-core 1\.2 or newer: No module named .*pip install "dcp-comm\[cuda1\d\]"'
    found = chosen()
    assert found.name == "torch"
    assert found.why.startswith("CUDA kernels need cuda-core 1.2 or newer: No module named")
    monkeypatch.setenv("DCP_COMM_KERNELS", "cuda")
    with pytest.raises(BackendUnavailable, match=rf"DCP_COMM_KERNELS: got 'cuda', need {need}"):
        chosen()


@needs_nvrtc
def test_a_missing_driver_is_explained_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(index: int) -> Loads:
        raise KernelsUnavailable("a driver of CUDA 12.4 or newer")

    monkeypatch.setattr(dispatch, "cuda_launcher", refuse)
    assert chosen().why == "CUDA kernels need a driver of CUDA 12.4 or newer"
    monkeypatch.setenv("DCP_COMM_KERNELS", "cuda")
    with pytest.raises(BackendUnavailable, match=r"got 'cuda', need a driver of CUDA 12\.4"):
        chosen()


@needs_nvrtc
@pytest.mark.parametrize("size", range(1, 9))
def test_no_default_block_is_too_wide(size: int) -> None:
    for k in [*range(8, 64), *range(64, 4097, 61), *CAPACITIES]:
        assert chosen(k, size).name == "cuda", k


@needs_nvrtc
@pytest.mark.parametrize(("k", "capacity"), [(8, 512), (512, 512), (513, 1024), (4096, 4096)])
def test_nothing_is_loaded_before_it_is_prepared(k: int, capacity: int, launcher: Loads) -> None:
    kernels = chosen(k)
    assert launcher.names == []
    kernels.prepare()
    sized = {name for name in launcher.names if name[-1].isdigit()}
    assert sized == {f"pack_{capacity}", f"merge_runs_{capacity}", f"select_{capacity}_4"}


def test_a_merge_names_what_does_its_arithmetic() -> None:
    def fn(comm: Communicator) -> str:
        return TopKMerge(comm, 4, 10).explain()

    for told in run_ranks(fn, 2):
        assert told.endswith("\narithmetic by torch (the only way on this device)")
