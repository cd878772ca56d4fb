"""Compiled and launched on a GPU."""

import threading
from pathlib import Path

import pytest
import torch

from dcp_comm.errors import DcpCommError
from dcp_comm.kernels.cuda.launcher import CudaLauncher, cuda_launcher
from dcp_comm.kernels.cuda.sources import read_all
from tests.kernels.nvrtc import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing())]

SOURCES = tuple(
    source
    for source in read_all(Path(__file__).parent / "sources")
    if source.path.stem in {"simple", "builtins"}
)
ROWS, LENGTH = 50, 700


@pytest.fixture(scope="module")
def launcher() -> CudaLauncher:
    return CudaLauncher(torch.device("cuda", 0), SOURCES)


def sums(launcher: CudaLauncher, given: torch.Tensor, out: torch.Tensor) -> None:
    launcher.launch("row_sum", (ROWS, 1), 256, 0, given.data_ptr(), out.data_ptr(), LENGTH)


def numbers(device: str = "cuda:0") -> tuple[torch.Tensor, torch.Tensor]:
    """Rows, and where their sums go."""
    given = torch.randint(-(2**40), 2**40, (ROWS, LENGTH), device=device)
    return given, torch.zeros(ROWS, dtype=torch.int64, device=device)


def test_a_kernel_runs_on_the_current_stream(launcher: CudaLauncher) -> None:
    def enqueue(cycles: int) -> tuple[torch.Tensor, torch.Tensor]:
        given, out = numbers()
        torch.cuda._sleep(cycles)
        given.add_(1)
        sums(launcher, given, out)
        return given, out

    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            enqueue(1)  # a kernel's first launch may wait for those before it
            stream.synchronize()
            given, out = enqueue(1_000_000_000)
            assert not stream.query()
            assert torch.equal(out, given.sum(1))


def test_a_graph_replays_it(launcher: CudaLauncher) -> None:
    given, out = numbers()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sums(launcher, given, out)
    for _ in range(3):
        given.random_(-1000, 1000)
        graph.replay()
        assert torch.equal(out, given.sum(1))


def test_a_new_thread_has_the_context(launcher: CudaLauncher) -> None:
    given, out = numbers()
    torch.cuda.synchronize()
    thread = threading.Thread(target=sums, args=(launcher, given, out))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(out, given.sum(1))


def test_shared_memory_goes_beyond_48_kib(launcher: CudaLauncher) -> None:
    given, out = (
        torch.arange(1024, device="cuda"),
        torch.zeros(1024, dtype=torch.int64, device="cuda"),
    )
    arguments = given.data_ptr(), out.data_ptr()
    launcher.launch("prefix_sum", (1, 1), 1024, 200 << 10, *arguments)
    assert torch.equal(out, given.cumsum(0))
    with pytest.raises(DcpCommError, match="launch of prefix_sum on"):
        launcher.launch("prefix_sum", (1, 1), 1024, 300 << 10, *arguments)


@pytest.mark.parametrize(
    ("kernel", "extra"), [("warp_builtins", ()), ("number_builtins", (0x7FC00000,))]
)
def test_the_emulators_builtins_are_cudas(
    launcher: CudaLauncher, kernel: str, extra: tuple[int, ...]
) -> None:
    out = torch.full((64,), -1, device="cuda")
    launcher.launch(kernel, (1, 1), 64, 0, out.data_ptr(), *extra)
    assert out.tolist() == [0] * 64


def test_the_emulators_atomic_operations_are_cudas(launcher: CudaLauncher) -> None:
    tickets = torch.full((96,), -1, device="cuda")
    totals = torch.zeros(6, dtype=torch.int64, device="cuda")
    arguments = tickets.data_ptr(), totals.data_ptr()
    launcher.launch("atomic_builtins", (1, 1), 96, 0, *arguments)
    assert sorted(tickets.tolist()) == list(range(96))
    assert totals.tolist() == [96, 5, 95, -1, 95 * 48, 96 + 7 + 4 + 4]


def test_each_gpu_has_its_own_kernels(launcher: CudaLauncher) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    second = CudaLauncher(torch.device("cuda", 1), SOURCES)
    for device, made in (("cuda:1", second), ("cuda:0", launcher), ("cuda:1", second)):
        given, out = numbers(device)  # while cuda:0 is the current device
        sums(made, given, out)
        assert torch.equal(out, given.sum(1))


def test_the_packages_own_kernels_load_once() -> None:
    assert cuda_launcher(0) is cuda_launcher(0)
