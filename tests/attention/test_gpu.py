"""On a GPU: the same results, nothing read back, and over NCCL by ranks that share it."""

from dataclasses import replace

import pytest
import torch

from dcp_comm.attention import sparse_attention
from tests.attention.cases import CASES, check
from tests.attention.on_gpu import MLA, cases, sharing
from tests.launches import reports
from tests.nccl.test_gpu import BACKENDS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", CASES)
def test_on_cuda_it_is_dense_attention(name: str) -> None:
    check(replace(CASES[name], device="cuda"))


def test_attention_reads_nothing_back() -> None:
    keys, _, winners, counts = (each.cuda() for each in MLA.shard(0))
    q = MLA.q.cuda()
    whole = sparse_attention(q, keys, MLA.value_dim, winners, counts, scale=1.0)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = sparse_attention(q, keys, MLA.value_dim, winners, counts, scale=1.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(again.out, whole.out)


def test_a_winner_that_does_not_exist_shows() -> None:
    """Looking would wait: its row is NaN, the others are as they should be."""
    q, keys = torch.ones(2, 4, 3, device="cuda"), torch.ones(5, 1, 3, device="cuda")
    winners = torch.tensor([[0, 5], [4, -1]], dtype=torch.int32, device="cuda")
    out, lse = sparse_attention(q, keys, 2, winners, scale=1.0)
    assert out[0].isnan().all()
    assert lse[0].isnan().all()
    assert out[1].eq(1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_over_nccl(backend: str) -> None:
    """Dense attention, a whole layer, gathered rows, and a captured graph that replays."""
    told = reports("tests.attention.on_gpu", 2, backend, environment=sharing)
    assert [each["fact"] for each in told["cases"]] == [len(list(cases(2)))] * 2
    assert max(each["fact"] for each in told["layer"]) < 1e-4
    assert [each["fact"] for each in told["gathered"]] == [True, True]
    assert [each["fact"] for each in told["replayed"]] == [[True, True]] * 2
