"""Warm merges by kernels: nothing allocated, awaited or compiled; graphs replay them."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.kernels import dispatch
from dcp_comm.kernels.cuda.launcher import CudaLauncher
from dcp_comm.kernels.cuda.sources import read_all
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.kernels.nvrtc import missing
from tests.schemes import SCHEMES, Scheme, merge_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing())]

ROWS, FEW, WIDTH = 150, 5, 900
ORDERS = ("score", "position")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges are seen alone, not with calls that compare them."""
    monkeypatch.setenv("DCP_COMM_CHECK", "0")


class Rows:
    """What one rank merges, in memory that stays: some rows are padding with stale ids."""

    def __init__(self, comm: Communicator, k: int) -> None:
        device = comm.device
        self.scores = torch.empty(ROWS, k, device=device)
        self.logits = torch.empty(ROWS, WIDTH, device=device, dtype=torch.bfloat16)
        self.ids = torch.empty(ROWS, k, dtype=torch.int32, device=device)
        self.lengths = torch.empty(ROWS, dtype=torch.int32, device=device)
        self.starts = torch.zeros(ROWS, dtype=torch.int64, device=device)
        self.draw()

    def draw(self) -> None:
        """Other values in the same memory."""
        k = self.ids.shape[1]
        self.scores.normal_()
        self.logits.normal_()
        self.ids.copy_(torch.rand(ROWS, WIDTH).argsort(1)[:, :k])
        self.lengths.random_(0, WIDTH)
        self.lengths[::3] = 0
        self.ids[::3] += 2**30

    def merge(self, merge: TopKMerge, rows: int, workspace: Workspace, out: MergeResult) -> None:
        """From scores."""
        lengths = self.lengths[:rows]
        merge(self.scores[:rows], self.ids[:rows], lengths, workspace=workspace, out=out)

    def merge_logits(
        self, merge: TopKMerge, rows: int, workspace: Workspace, out: MergeResult
    ) -> None:
        """From logits, in two segments."""
        job = merge.begin(rows, workspace=workspace, out=out)
        for part in (slice(0, rows // 2), slice(rows // 2, rows)):
            columns = (self.logits, self.ids, self.starts, self.lengths)
            job.pack_logits(*(each[part] for each in columns))
        job.finish()


def prepared(
    comm: Communicator, scheme: Scheme, order: str, k: int
) -> tuple[TopKMerge, Workspace, MergeResult]:
    """A merge by kernels, its locked memory, and where it writes."""
    merge = merge_of(comm, scheme, ROWS, k=k, order=order, chunk_rows=ROWS - 1)
    assert "arithmetic by cuda" in merge.explain()
    workspace = Workspace(device=comm.device)
    workspace.reserve(*merge.specs(), owner="merge")
    workspace.lock()
    return merge, workspace, MergeResult.allocate(ROWS, k, comm.device)


@contextmanager
def nothing_awaited() -> Iterator[None]:
    """Waiting for the GPU is an error, in every rank's thread."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def allocations() -> int:
    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def warm(comm: Communicator, scheme: Scheme, order: str, k: int) -> int:
    """How much more was allocated by warm merges."""
    merge, workspace, out = prepared(comm, scheme, order, k)
    rows = Rows(comm, k)
    ways = (rows.merge, rows.merge_logits)
    for merge_rows in ways:
        merge_rows(merge, ROWS, workspace, out)
    torch.cuda.synchronize()
    comm.barrier()
    before = allocations()
    comm.barrier()
    with nothing_awaited():
        for count in (ROWS, FEW, ROWS):
            part = MergeResult(out.ids[:count], out.counts[:count], out.certified[:count])
            for merge_rows in ways:
                merge_rows(merge, count, workspace, part)
        comm.barrier()
        more = allocations() - before
        comm.barrier()
    return more


@pytest.mark.parametrize("k", [64, 513])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_warm_merge_allocates_nothing_and_awaits_nothing(
    scheme: Scheme, size: int, order: str, k: int
) -> None:
    assert run_ranks(warm, size, scheme, order, k, device="cuda") == [0] * size


@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_graphs_of_two_row_counts_share_a_workspace(
    scheme: Scheme, order: str, from_logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows in the same memory give the winners that torch operations give."""

    def fn(comm: Communicator) -> None:
        k = 64
        merge, workspace, out = prepared(comm, scheme, order, k)
        monkeypatch.setenv("DCP_COMM_KERNELS", "torch")
        reference = merge_of(comm, scheme, ROWS, k=k, order=order)
        assert "arithmetic by torch" in reference.explain()
        rows, graphs = Rows(comm, k), {}
        merge_rows = rows.merge_logits if from_logits else rows.merge
        merge_rows(merge, ROWS, workspace, out)
        for count in (ROWS, FEW):
            part = MergeResult.allocate(count, k, comm.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                merge_rows(merge, count, workspace, part)
            graphs[count] = graph, part
        for _ in range(3):
            rows.draw()
            for count, (graph, part) in graphs.items():
                right = MergeResult.allocate(count, k, comm.device)
                merge_rows(reference, count, Workspace(device=comm.device), right)
                columns = part.ids, part.counts, part.certified
                for each in columns:
                    each.view(torch.uint8).fill_(0xA5)
                graph.replay()
                for each, expected in zip(columns, columns_of(right), strict=True):
                    assert torch.equal(each, expected)

    run_ranks(fn, 1, device="cuda")


def columns_of(result: MergeResult) -> tuple[Tensor, Tensor, Tensor]:
    return result.ids, result.counts, result.certified


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_prepared_merge_never_meets_the_compiler(
    scheme: Scheme, size: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = CudaLauncher(torch.device("cuda", 0), read_all())
    monkeypatch.setattr(dispatch, "cuda_launcher", lambda index: fresh)

    def fn(comm: Communicator) -> None:
        k = 64
        merge, workspace, _ = prepared(comm, scheme, order, k)
        comm.barrier()
        monkeypatch.setattr(fresh, "load", refuse)
        rows = Rows(comm, k)
        for count in (ROWS, FEW):
            part = MergeResult.allocate(count, k, comm.device)
            rows.merge(merge, count, workspace, part)
            rows.merge_logits(merge, count, workspace, part)

    run_ranks(fn, size, device="cuda")


def refuse(kernel: str) -> None:
    raise AssertionError(f"{kernel} was not loaded by prepare()")
