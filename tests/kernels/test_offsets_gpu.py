"""Kernels on a GPU where offsets do not fit 32 bits; each test takes less than 20 GB."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dcp_comm.kernels.cuda.launcher import cuda_launcher
from dcp_comm.kernels.primitives import BlockTable, Emission
from dcp_comm.topk.keys import PAD
from tests.kernels.both import PAGE, Both, Point
from tests.kernels.nvrtc import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing())]

STRIDE = 1_200_000_000
ROWS = 3
POINT = Point("normal", 512, 2, ROWS, interleave=4)


@pytest.fixture(autouse=True)
def _enough_memory() -> Iterator[None]:
    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < 24e9:
        pytest.skip("needs 24 GB")
    yield
    torch.cuda.empty_cache()


def on_gpu(point: Point = POINT) -> Both:
    return Both(cuda_launcher(0), point, "cuda:0")


def apart(values: Tensor) -> Tensor:
    """The same rows, so far apart that the last begins beyond 2^31 elements."""
    rows, width = values.shape
    memory = torch.empty((rows - 1) * STRIDE + width, dtype=values.dtype, device="cuda")
    far = memory.as_strided((rows, width), (STRIDE, 1))
    assert (rows - 1) * STRIDE > 2**31
    return far.copy_(values)


def test_rows_of_scores_far_apart() -> None:
    both, k = on_gpu(), POINT.k
    scores, ids = apart(both.scores(k)), both.give(both.candidates()[0])
    compared = both.give(scores.cpu())
    run, right = torch.empty(2, ROWS, k, dtype=torch.int64, device="cuda")
    both.kernels.pack(run, scores, ids, None, shard=both.shard(1), mask_neg_inf=True)
    both.reference.pack(right, compared, ids, None, shard=both.shard(1), mask_neg_inf=True)
    assert torch.equal(run, right)


def test_rows_of_ids_far_apart() -> None:
    both, k = on_gpu(), POINT.k
    near = torch.from_numpy(both.candidates()[0])
    scores, ids = both.give(both.scores(k)), apart(near)
    run, right = torch.empty(2, ROWS, k, dtype=torch.int64, device="cuda")
    both.kernels.pack(run, scores, ids, None, shard=both.shard(1), mask_neg_inf=True)
    both.reference.pack(right, scores, near.cuda(), None, shard=both.shard(1), mask_neg_inf=True)
    assert torch.equal(run, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_logits_far_apart(dtype: torch.dtype) -> None:
    both, k = on_gpu(), POINT.k
    near = both.scores(3 * k).to(dtype)
    ids = both.give(both.candidates()[0])
    starts = both.give(torch.tensor([0, 5, k]))
    run, right = torch.empty(2, ROWS, k, dtype=torch.int64, device="cuda")
    for way, out, logits in (
        (both.kernels, run, apart(near)),
        (both.reference, right, near.cuda()),
    ):
        way.pack_logits(out, logits, ids, starts, None, shard=both.shard(1), mask_neg_inf=True)
    assert torch.equal(run, right)


def test_columns_far_out() -> None:
    """A row wider than 2^31, whose ids start behind that, and others close to it."""
    both, k, width = on_gpu(), POINT.k, 2**31 + 10_000
    logits = torch.zeros(1, width, dtype=torch.bfloat16, device="cuda")
    near = both.scores(9000)[:1].to(torch.bfloat16)
    logits[:, -9000:] = near.cuda()
    ids = torch.arange(k, dtype=torch.int32, device="cuda")[None]
    far_ids = ids + (2**31 - 2 * k)
    run, right = torch.empty(2, 1, k, dtype=torch.int64, device="cuda")
    for these, start in ((ids, width - 9000), (far_ids, width - 9000 - (2**31 - 2 * k))):
        starts = torch.tensor([start], device="cuda")
        shard = Both(cuda_launcher(0), Point("normal", k, 1)).shard(0)
        kept = near[:, :k].float().cuda()
        both.kernels.pack_logits(run, logits, these, starts, None, shard=shard, mask_neg_inf=True)
        both.reference.pack(right, kept, these, None, shard=shard, mask_neg_inf=True)
        assert torch.equal(run, right)


def emission(ids: Tensor, both: Both, table: BlockTable | None, by_position: bool) -> Emission:
    rows = len(ids)
    return Emission(
        ids,
        torch.empty(rows, dtype=torch.int32, device="cuda"),
        torch.empty(rows, dtype=torch.bool, device="cuda"),
        torch.zeros((), dtype=torch.int64, device="cuda"),
        by_position,
        None if table is None else both.shard(0),
        table,
    )


@pytest.mark.parametrize("by_position", [False, True])
def test_rows_of_results_far_apart(by_position: bool) -> None:
    both, k = on_gpu(), POINT.k
    runs = both.runs()
    far = apart(torch.zeros(ROWS, k, dtype=torch.int32))
    right = torch.empty(ROWS, k, dtype=torch.int32, device="cuda")
    both.kernels.merge_runs(runs, None, emission(far, both, None, by_position))
    both.reference.merge_runs(runs, None, emission(right, both, None, by_position))
    assert torch.equal(far, right)
    both.kernels.emit_own(runs[0], None, emission(far, both, None, by_position))
    both.reference.emit_own(runs[0], None, emission(right, both, None, by_position))
    assert torch.equal(far, right)
    both.kernels.merge_sealed(runs, far, by_position=by_position)
    both.reference.merge_sealed(runs, right, by_position=by_position)
    assert torch.equal(far, right)
    both.kernels.unseal(far, emission(right, both, None, by_position))
    both.kernels.unseal(right.clone(), emission(far, both, None, by_position))
    assert torch.equal(far, right)


def test_rows_of_a_block_table_far_apart() -> None:
    both, k = on_gpu(), POINT.k
    run = both.runs()[0]
    near = torch.randint(0, 999, (ROWS, 2 * k // PAGE), dtype=torch.int32)
    outs = torch.empty(2, ROWS, k, dtype=torch.int32, device="cuda")
    for way, out, pages in zip(
        (both.kernels, both.reference), outs, (apart(near), near.cuda()), strict=True
    ):
        way.emit_own(run, None, emission(out, both, BlockTable(pages, None, PAGE), False))
    assert torch.equal(*outs)


def test_runs_of_more_keys_than_fit_32_bits() -> None:
    """Only the last rows hold any."""
    k, size, rows, last = 4096, 8, 66_000, 3
    point = Point("normal", k, size, last)
    both = on_gpu(point)
    some = both.runs()
    runs = torch.full((size, rows, k), PAD, device="cuda")
    assert runs.numel() > 2**31
    runs[:, -last:] = some
    verdicts = torch.empty(size, rows, dtype=torch.int64, device="cuda")
    right = torch.empty(size, last, dtype=torch.int64, device="cuda")
    both.kernels.settle(runs, verdicts)
    both.reference.settle(some, right)
    assert torch.equal(verdicts[:, -last:], right)
    ids = torch.empty(rows, k, dtype=torch.int32, device="cuda")
    expected = torch.empty(last, k, dtype=torch.int32, device="cuda")
    both.kernels.merge_sealed(runs, ids, by_position=False)
    both.reference.merge_sealed(some, expected, by_position=False)
    assert torch.equal(ids[-last:], expected)
    assert bool((ids[:-last] == -1).all())
