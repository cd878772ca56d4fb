"""What a merge takes: scratch to the last reserved byte, and temporaries below a bound."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dcp_comm.communicator import Communicator
from dcp_comm.kernels import torch_ops
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.allocations import Allocations
from tests.buffers import aligned
from tests.schemes import SCHEMES, K, Scheme, candidates, merge_of, scratch_of
from tests.topk.cases import select_lists


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the merge's own tensors, not those of comparing calls."""
    monkeypatch.setenv("DCP_COMM_CHECK", "0")


def bound(k: int, size: int, chunk_rows: int) -> int:
    """Most bytes of temporaries of the torch path, for p = size ranks and R = chunk_rows.

    ``64 * (K * (64 + 8 * p) + 32 * p**2) + (48 + 32 * p) * R``: blocks of 64 rows with their keys
    and the search's counts of every pair of ranks, and some words for each row of the chunk.
    """
    block = torch_ops.BLOCK_ROWS * (k * (64 + 8 * size) + 32 * size**2)
    return block + (48 + 32 * size) * chunk_rows


class Written(TorchDispatchMode):
    """Which bytes of one block of memory operations of this thread have written."""

    def __init__(self, memory: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._start, self._touched = memory.data_ptr(), torch.zeros(memory.nbytes, dtype=torch.bool)

    @property
    def nbytes(self) -> int:
        """How many."""
        return int(self._touched.sum())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._mark(args[place] if place < len(args) else kwargs.get(argument.name))
        return func(*args, **kwargs)

    def _mark(self, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.numel():
            first, width = tensor.data_ptr() - self._start, tensor.itemsize
            if 0 <= first < self._touched.numel():
                strides = (*(width * stride for stride in tensor.stride()), 1)
                self._touched.as_strided((*tensor.shape, width), strides, first).fill_(True)


# Scratch


@dataclass(frozen=True)
class Seen:
    """What one rank's merge took."""

    written: int
    peak: int
    asked: list[int]
    counts: list[int]


def measured(comm: Communicator, scheme: Scheme, rows: int, chunk_rows: int) -> tuple[Seen, int]:
    """Merge in reserved, locked memory; what was taken, and what a merge of these rows reserves."""
    merge = merge_of(comm, scheme, 2 * chunk_rows + 5, chunk_rows=chunk_rows)
    exact = merge_of(comm, scheme, max(1, min(rows, chunk_rows)))
    blocks: list[Tensor] = []
    asked: list[int] = []

    def allocator(nbytes: int, device: torch.device) -> Tensor:
        asked.append(nbytes)
        blocks.append(aligned(nbytes))
        return blocks[-1]

    workspace = Workspace(allocator=allocator)
    workspace.reserve(*merge.specs(), owner="merge")
    workspace.lock()
    out = MergeResult.allocate(rows, K, "cpu")
    inputs = candidates(rows)
    with Written(blocks[0]) as written, Allocations() as allocated:
        merge(*inputs, workspace=workspace, out=out)
    seen = Seen(written.nbytes, allocated.peak, asked, out.counts.tolist())
    return seen, exact.nbytes if rows else 0


@pytest.mark.parametrize("chunk_rows", [5, 66])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_scratch_is_used_to_the_last_byte_and_nothing_beside_it(
    scheme: Scheme, size: int, chunk_rows: int
) -> None:
    """Full chunks write every reserved byte; fewer rows write what they alone would reserve."""
    reserved = run_ranks(lambda c: merge_of(c, scheme, 999, chunk_rows=chunk_rows).nbytes, size)
    for rows in (0, 1, chunk_rows - 1, chunk_rows, chunk_rows + 1, 2 * chunk_rows + 5):
        for seen, need in run_ranks(measured, size, scheme, rows, chunk_rows):
            assert seen.written == need
            assert need == reserved[0] if rows >= chunk_rows else need <= reserved[0]
            assert len(seen.asked) == 1
            assert seen.asked[0] - 256 * 8 < reserved[0] <= seen.asked[0]
            assert seen.peak <= bound(K, size, chunk_rows)
            assert rows == 0 or scheme[1] == "local" or seen.counts == [K] * rows


def test_scratch_for_any_plan_is_what_the_largest_one_writes() -> None:
    """Strategy ``auto``: one buffer for several plans, apart from alignment used to its end."""

    def fn(comm: Communicator) -> tuple[list[int], int]:
        merge, used = TopKMerge(comm, 64, 4096, output="local", link="network"), []
        merge.prepare()
        assert [spec.name for spec in merge.specs()] == ["merge"]
        for rows in (1, 900, 4096):
            scratch = scratch_of(merge)
            with Written(scratch[0]) as written:
                merge(*candidates(rows, 64), scratch=scratch)
            used.append(written.nbytes)
        return used, merge.nbytes

    for used, reserved in run_ranks(fn, 3):
        assert 0 < used[0] < used[1] < used[2]
        assert reserved - 256 * 8 < used[2] <= reserved


# Temporaries


def peak(
    comm: Communicator, scheme: Scheme, k: int, chunk_rows: int, order: str, logits: bool
) -> int:
    """Most bytes of temporaries of a merge of two chunks and a row."""
    rows = 2 * chunk_rows + 1
    merge = merge_of(comm, scheme, rows, k=k, chunk_rows=chunk_rows, order=order)
    scratch = scratch_of(merge)
    scores, ids, lengths = candidates(rows, k)
    out = MergeResult.allocate(rows, k, "cpu")
    with Allocations() as seen:
        job = merge.begin(rows, scratch=scratch, out=out)
        if logits:
            job.pack_logits(scores, ids, torch.zeros(rows, dtype=torch.int64), lengths)
        else:
            job.pack(scores, ids, lengths)
        job.finish()
    return int(seen.peak)


def check_temporaries(size: int, k: int, chunk_rows: int, order: str) -> None:
    """Compare what every scheme uses with the bound, from scores and from logits."""
    for scheme in SCHEMES:
        for logits in (False, True):
            used = run_ranks(peak, size, scheme, k, chunk_rows, order, logits)
            assert 0 < max(used) < bound(k, size, chunk_rows)


@pytest.mark.parametrize("order", ["score", "position"])
@pytest.mark.parametrize(("size", "k", "chunk_rows"), [(1, 8, 200), (2, 300, 64), (4, 8, 65)])
def test_temporaries_stay_below_the_bound(size: int, k: int, chunk_rows: int, order: str) -> None:
    check_temporaries(size, k, chunk_rows, order)


def test_lists_are_sorted_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ranks send lists, as to GPUs, one of which has no kernels."""
    select_lists(monkeypatch)
    for size, k, chunk_rows in ((2, 300, 128), (4, 8, 300)):
        check_temporaries(size, k, chunk_rows, "score")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("order", ["score", "position"])
@pytest.mark.parametrize(("k", "chunk_rows"), [(8, 64), (8, 1024), (64, 300), (2048, 70)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_no_temporaries_exceed_the_bound(size: int, k: int, chunk_rows: int, order: str) -> None:
    check_temporaries(size, k, chunk_rows, order)


def test_temporaries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is no formality: blocks of all rows exceed the bound that blocks of 64 keep."""
    limit = bound(64, 4, 512)
    right = torch_ops.row_blocks
    monkeypatch.setattr(torch_ops, "row_blocks", lambda rows, size=0: right(rows, 1 << 20))
    used = run_ranks(peak, 4, SCHEMES[0], 64, 512, "score", False)
    assert min(used) > limit
