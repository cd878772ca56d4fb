"""What the driver is given, by a stand-in for it."""

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dcp_comm.errors import BackendUnavailable, CommArgumentError, DcpCommError
from dcp_comm.kernels.cuda import compiler, driver
from dcp_comm.kernels.cuda.launcher import CudaLauncher
from dcp_comm.kernels.cuda.sources import Source

HERE = Path(__file__).parent
OURS, OTHERS, STREAM = 0xC0, 0xDD, 0x7FFF12345678

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, for the stand-in")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled."""
    made = tmp_path_factory.mktemp("cuda") / "libcuda.so"
    command = ["gcc", "-shared", "-fPIC", "-o", str(made), str(HERE / "stub_cuda.c")]
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def cuda(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The stand-in, in the driver's place."""
    stub = ctypes.CDLL(str(library))
    stub.stub_forget()
    monkeypatch.setattr(driver, "driver", lambda: stub)
    monkeypatch.setattr(compiler, "cubin", lambda source, arch: b"\x7fELF" + arch.encode())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: STREAM + index, raising=False
    )
    context(stub).value = OTHERS
    yield stub
    assert ctypes.c_int.in_dll(stub, "stub_depth").value == 0  # every push was popped


def context(stub: ctypes.CDLL) -> ctypes.c_void_p:
    return ctypes.c_void_p.in_dll(stub, "stub_current")


def launcher(index: int = 0) -> CudaLauncher:
    return CudaLauncher(torch.device("cuda", index), (Source.read(HERE / "sources" / "simple.cu"),))


def sizes(stub: ctypes.CDLL) -> list[int]:
    return list((ctypes.c_uint64 * 8).in_dll(stub, "stub_sizes"))


def values(stub: ctypes.CDLL, count: int) -> list[int]:
    return list((ctypes.c_int64 * 64).in_dll(stub, "stub_values"))[:count]


@pytest.mark.parametrize("current", [OURS, OTHERS, 0])
def test_sizes_arguments_stream_and_context_arrive(cuda: ctypes.CDLL, current: int) -> None:
    made = launcher(3)
    context(cuda).value = current
    made.launch("row_sum", (2**31 - 1, 65535), 1024, 232448, 1 << 46, 5, -1)
    assert sizes(cuda) == [2, 2**31 - 1, 65535, 1, 1024, 232448, STREAM + 3, OURS]
    assert values(cuda, 3) == [1 << 46, 5, -1]
    made.launch("add_scalar", (1, 2), 32, 0, 1, 2, 3)
    assert sizes(cuda)[:6] == [1, 1, 2, 1, 32, 0]
    assert values(cuda, 3) == [1, 2, 3]


def test_every_kernel_may_use_the_shared_memory_that_it_leaves(cuda: ctypes.CDLL) -> None:
    launcher().launch("row_sum", (1, 1), 32, 0, 1, 2, 3)
    allowed = list((ctypes.c_int * 8).in_dll(cuda, "stub_dynamic"))[1:4]
    assert allowed == [232448 - 256 * function for function in (1, 2, 3)]
    cuda.stub_name.restype = ctypes.c_char_p
    assert cuda.stub_name(2) == b"row_sum"


@pytest.mark.parametrize("count", [2, 4])
def test_a_wrong_number_of_arguments_is_refused(cuda: ctypes.CDLL, count: int) -> None:
    made, before = launcher(), ctypes.c_int.in_dll(cuda, "stub_launches").value
    words = f"launch: arguments of row_sum: got {count}, need 3 of them"
    with pytest.raises(CommArgumentError, match=words):
        made.launch("row_sum", (1, 1), 32, 0, *range(count))
    assert ctypes.c_int.in_dll(cuda, "stub_launches").value == before


def test_what_the_driver_refuses_is_named(cuda: ctypes.CDLL) -> None:
    made = launcher()
    ctypes.c_int.in_dll(cuda, "stub_fails_launch").value = 1
    words = r"launch of row_sum on \(1, 1\) blocks of 32 threads: CUDA_ERROR_INVALID_VALUE \(1\)"
    for current in (OURS, OTHERS):
        context(cuda).value = current
        with pytest.raises(DcpCommError, match=words):
            made.launch("row_sum", (1, 1), 32, 0, 1, 2, 3)
    ctypes.c_int.in_dll(cuda, "stub_fails_load").value = 200
    with pytest.raises(DcpCommError, match=r"load of a cubin: CUDA_ERROR_INVALID_IMAGE \(200\)"):
        launcher().launch("row_sum", (1, 1), 32, 0, 1, 2, 3)


def test_a_source_is_loaded_once_and_when_it_is_needed(
    cuda: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def compile_to(source: Source, arch: str) -> bytes:
        compiled.append(f"{source.path.stem} {arch}")
        return b"\x7fELF"

    monkeypatch.setattr(compiler, "cubin", compile_to)
    units = [Source.read(HERE / "sources" / f"{name}.cu") for name in ("simple", "wrong")]
    made = CudaLauncher(torch.device("cuda", 0), tuple(units))
    assert compiled == []
    for kernel in ("row_sum", "add_scalar", "row_sum"):
        made.launch(kernel, (1, 1), 32, 0, 1, 2, 3)
    assert compiled == ["simple sm_90"]


def test_python_threads_do_not_share_arguments(cuda: ctypes.CDLL) -> None:
    made = launcher()
    records: list[int] = []

    def launch() -> None:
        made.launch("row_sum", (1, 1), 32, 0, 1, 2, 3)
        records.append(ctypes.addressof(made._record.memory))

    launch()
    other = threading.Thread(target=launch)
    other.start()
    other.join()
    assert len(set(records)) == 2


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("stub_parameters", 65, "got 65 parameters, need at most 64"),
        ("stub_second_bytes", 4, "load of add_scalar: parameter 1 is not one of 64 bits"),
    ],
)
def test_parameters_that_cannot_be_passed_are_refused(
    cuda: ctypes.CDLL, name: str, value: int, words: str
) -> None:
    ctypes.c_int.in_dll(cuda, name).value = value
    with pytest.raises(DcpCommError, match=words):
        launcher().launch("row_sum", (1, 1), 32, 0, 1, 2, 3)


def test_an_old_driver_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(cuLaunchKernelEx=None, cuCtxGetCurrent=None)
    monkeypatch.setattr(driver, "driver", lambda: old)
    with pytest.raises(BackendUnavailable, match=r"need a driver of CUDA 12\.4 or newer"):
        launcher()
