"""Merges on CUDA, by kernels and by torch operations: equal results.

Of torch operations: nothing read back, capturable. For kernels see `tests.kernels`.
"""

import numpy as np
import pytest
import torch
from torch import Tensor

from dcp_comm.kernels import torch_ops as ops
from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import PAD
from tests.topk.cases import check_merge
from tests.topk.local_cases import check_local
from tests.topk.scores import KINDS, drawn
from tests.topk.test_sweep import QUICK, build

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kernels", ["", "torch"])
@pytest.mark.parametrize("first", range(7))
def test_merge_on_cuda_equals_the_oracle(
    first: int, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every seventh case of the sweep, on ranks that share the GPU."""
    monkeypatch.setenv("DCP_COMM_KERNELS", kernels)
    for n in range(first, len(QUICK), 7):
        check_merge(build(*QUICK[n], n, device="cuda"))


@pytest.mark.parametrize("kind", list(KINDS))
def test_local_topk_on_cuda_equals_the_oracle(kind: str) -> None:
    """Several widths and dtypes."""
    rng = np.random.default_rng(1)
    for width, k in ((0, 3), (7, 9), (5000, 2048)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits = torch.from_numpy(drawn(kind, 70, width, rng)).to("cuda", dtype)
            starts = rng.integers(0, width + 3, 70)
            check_local(logits, k, starts, rng.integers(-2, width + 3, 70))


def select(scores: Tensor, ids: Tensor, lengths: Tensor, runs: Tensor, out: Tensor) -> None:
    """All torch operations, one after another."""
    for rank, run in enumerate(runs):
        shard = Shard(rank, len(runs), 16)
        ops.pack(run, scores[rank], ids, lengths, shard=shard, mask_neg_inf=True)
    prefixes = ops.prefix_lengths(runs, out.shape[1])
    threshold = ops.threshold(runs, prefixes, out.shape[1])
    certified = ops.certify(runs, threshold)
    ops.count_ge(runs, PAD + 1)
    ops.read_verdicts(ops.verdicts(prefixes, certified))
    splitters, windows = runs.new_empty(runs.shape[1], 4), runs.new_empty(runs.shape[1], 9)
    ops.copy_splitters(splitters, runs[0], 64)
    ops.copy_windows(windows, runs[0], prefixes[0])
    ops.emit(out, runs, prefixes, by_position=False, shard=None)
    ops.seal(out, certified)
    ops.unseal(out)
    ops.to_slots(out.clone(), out, lengths, 64)


def test_nothing_is_read_back_and_a_graph_replays_it() -> None:
    """Shapes never depend on data, so that new data in the same memory gives new winners."""
    rows, k = 100, 256
    scores = torch.randn(3, rows, k, device="cuda")
    ids = torch.arange(k, dtype=torch.int32, device="cuda").repeat(rows, 1)
    lengths = torch.randint(0, k, (rows,), device="cuda")
    runs = torch.empty(3, rows, k, dtype=torch.int64, device="cuda")
    out = torch.empty(rows, k, dtype=torch.int32, device="cuda")
    select(scores, ids, lengths, runs, out)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            select(scores, ids, lengths, runs, out)
        scores.normal_()
        lengths.random_(0, k)
        graph.replay()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    replayed = out.clone()
    out.fill_(-7)
    select(scores, ids, lengths, runs, out)
    assert torch.equal(replayed, out)
