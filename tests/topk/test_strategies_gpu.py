"""Every strategy on CUDA: equal results, nothing read back to the host."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from tests.topk.cases import PAGED, Case
from tests.topk.scores import KINDS, drawn, drawn_lengths
from tests.topk.variants import Variant, check_variants, variants

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("output", ["global", "local", "slots"])
@pytest.mark.parametrize(("size", "k"), [(1, 9), (2, 2048), (3, 37), (4, 512), (8, 64)])
def test_all_strategies_on_cuda_equal_the_oracle(size: int, k: int, output: str) -> None:
    """On ranks that share the GPU, over all kinds of scores, in both orders."""
    for seed, kind in enumerate(KINDS):
        rng = np.random.default_rng(seed)
        rows, length = 13, size * k + 5
        scores, lengths = drawn(kind, rows, length, rng), drawn_lengths(rows, length, k, rng)
        case = Case(scores, lengths, size, k, 4, output=output, chunk_rows=6, device="cuda")
        assert check_variants(replace(case, order=("score", "position")[seed % 2], seed=seed)) > 0


@pytest.mark.parametrize("kernels", ["", "torch"])
@pytest.mark.parametrize("output", ["global", "local", "slots"])
def test_nothing_is_read_back(output: str, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by any strategy, from begin to finish."""
    monkeypatch.setenv("DCP_COMM_KERNELS", kernels)
    k, rows = 64, 70

    def fn(comm: Communicator, variant: Variant) -> int:
        strategy, options = variant
        merge = TopKMerge(comm, k, rows, strategy=strategy, output=output, options=options)
        scores = torch.randn(rows, k, device=comm.device)
        ids = torch.arange(k, dtype=torch.int32, device=comm.device).repeat(rows, 1)
        table = torch.zeros(rows, k, dtype=torch.int32, device=comm.device)
        block_table = table if output == "slots" else None
        merge(scores, ids, block_table=block_table)
        comm.barrier()
        torch.cuda.set_sync_debug_mode("error")
        try:
            merge(scores, ids, block_table=block_table)
            comm.barrier()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return int(merge.uncertified)

    assert PAGED.page_size < k
    for variant in variants(output, k):
        assert run_ranks(fn, 3, variant, device="cuda") == [0, 0, 0]
