"""The kernels of the local top-K on a GPU: bit for bit what the torch operations give."""

import numpy as np
import pytest
import torch

from dcp_comm.kernels import torch_topk
from dcp_comm.kernels.cuda import local
from dcp_comm.kernels.cuda.launcher import Launcher, cuda_launcher
from tests.kernels.nvrtc import missing
from tests.kernels.topk_cases import found, outputs
from tests.topk.scores import KINDS, drawn

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing())]

DEVICE = torch.device("cuda", 0)
PARTS = (0, 2, 32)


@pytest.fixture(scope="module")
def launcher() -> Launcher:
    return cuda_launcher(0)


def scratch_for(rows: int, parts: int, k: int) -> torch.Tensor:
    return torch.full((rows, parts, 2 * k + 1), -1, dtype=torch.int64, device=DEVICE)


def same(got: tuple[torch.Tensor, torch.Tensor], want: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.equal(got[1], want[1]) and torch.equal(
        got[0].view(torch.int32), want[0].view(torch.int32)
    )


def check(
    launcher: Launcher,
    logits: torch.Tensor,
    k: int,
    starts: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    *,
    masked: bool = True,
) -> None:
    want = found(torch_topk.local_topk, logits, k, starts, lengths, masked=masked)
    for parts in PARTS:
        scores, ids = got = outputs(len(logits), k, DEVICE)
        scratch = scratch_for(len(logits), parts, k)
        given = scores, ids, logits, starts, lengths
        local.write_topk(launcher, *given, mask_neg_inf=masked, scratch=scratch)
        assert same(got, want), (parts, (got[1] != want[1]).any(1).nonzero()[:5].tolist())


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("rows", [1, 5, 300])
def test_winners_equal_those_of_torch(launcher: Launcher, kind: str, rows: int) -> None:
    """Every dtype, K on both sides of every bound, any starts and lengths."""
    rng = np.random.default_rng(rows)
    for width in (7, 4096, 4099, 16384, 30011):
        scores = torch.from_numpy(drawn(kind, rows, width + 1, rng)).to(DEVICE)
        starts = torch.from_numpy(rng.integers(-3, 9, rows)).to(DEVICE)
        lengths = torch.from_numpy(rng.integers(0, width + 9, rows)).to(DEVICE).int()
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits = scores.to(dtype)[:, 1:]
            for k in (1, 100, 2048, 2049, 4096):
                check(launcher, logits, k)
                check(launcher, logits, k, starts, lengths, masked=False)


def test_equal_rows_a_thousand_times() -> None:
    """Chance decides the order of threads, and nothing else."""
    logits = torch.ones(3, 40001, device=DEVICE)
    want = torch.arange(2048, dtype=torch.int32, device=DEVICE).expand(3, -1)
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    for _ in range(1000):
        _, ids = found(local.local_topk, logits, 2048)
        wrong += (ids != want).any()
    assert wrong.item() == 0


def test_offsets_beyond_31_bits(launcher: Launcher) -> None:
    """Rows that lie further apart than 2^31 elements."""
    stride, width = 2**31 + 7, 20000
    whole = torch.zeros(stride + width, dtype=torch.bfloat16, device=DEVICE)
    logits = whole.as_strided((2, width), (stride, 1))
    logits.copy_(torch.randn(2, width, device=DEVICE))
    check(launcher, logits, 2048)


def test_a_graph_replays_it_for_other_lengths(launcher: Launcher) -> None:
    """Nothing is allocated or read back; the scratch needs no care between calls."""
    rows, width, k = 4, 262144, 2048
    logits = torch.randn(rows, width, device=DEVICE)
    lengths = torch.full((rows,), width, device=DEVICE)
    got, scratch = outputs(rows, k, DEVICE), scratch_for(rows, 32, k)

    def write() -> None:
        given = *got, logits, None, lengths
        local.write_topk(launcher, *given, mask_neg_inf=True, scratch=scratch)

    write()  # so that it is compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write()
    for length in (width, 5, 0, 100000):
        lengths.fill_(length)
        logits.normal_()
        got[1].fill_(7)
        scratch.fill_(0x5A5A5A5A5A5A5A5A)
        graph.replay()
        assert same(got, found(torch_topk.local_topk, logits, k, None, lengths))


def test_a_graph_captures_local_topk_with_its_allocations() -> None:
    """They come from the graph's pool."""
    logits = torch.randn(4, 262144, device=DEVICE)
    found(local.local_topk, logits, 2048)  # so that it is compiled
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = found(local.local_topk, logits, 2048)
    for _ in range(3):
        logits.normal_()
        graph.replay()
        assert same(got, found(torch_topk.local_topk, logits, 2048))
