"""Warm-up: every plan exchanges once, before the first merge, and leaves no trace."""

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.ledger import Ledger
from dcp_comm.testing import run_ranks
from dcp_comm.topk.local import local_topk
from tests.schemes import SCHEMES, K, Scheme, merge_of


def seen_by_a_warm_up(comm: Communicator, scheme: Scheme) -> tuple[int, int, bool]:
    """Calls issued in a warm-up, calls that the ledger kept, whether a merge is as without it."""
    merge, calls = merge_of(comm, scheme, 7, chunk_rows=3), 0
    scores, ids = local_topk(torch.arange(70.0).view(7, 10) * (comm.rank + 1), K)
    before = merge(scores, ids)
    comm.ledger.reset()
    with comm.ledger.paused():
        merge._choice.warm_up()
        calls = comm.ledger.calls
    after = merge(scores, ids)
    same = torch.equal(before.ids, after.ids) and torch.equal(before.counts, after.counts)
    merged = comm.ledger.calls
    return calls, merged, same


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_exchanges_and_is_not_counted(scheme: Scheme) -> None:
    for calls, merged, same in run_ranks(seen_by_a_warm_up, 3, scheme):
        # Two chunks of the warm-up, three of the merge.
        assert calls * 3 == merged * 2 > 0
        assert same


def test_prepare_warms_up_on_cuda_alone() -> None:
    def fn(comm: Communicator) -> tuple[int, int]:
        merge_of(comm, SCHEMES[0], 7)
        on_cpu = comm.ledger.calls
        comm.device = torch.device("cuda")
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|cuda"):
            merge_of(comm, SCHEMES[0], 7)
        return on_cpu, comm.ledger.calls

    if torch.cuda.is_available():
        pytest.skip("is about a machine without CUDA")
    assert run_ranks(fn, 2) == [(0, 0), (0, 0)]


def test_a_paused_ledger_forgets() -> None:
    ledger = Ledger(2)
    ledger.count_control(64)
    with ledger.paused():
        ledger.count_control(64)
        assert ledger.by_op["fingerprint"].calls == 2
    assert ledger.by_op["fingerprint"].calls == 1
