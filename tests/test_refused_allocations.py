"""Allocations that fail, each in its turn: nothing is harmed, and the same can be tried again."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import Workspace
from tests.allocations import storages
from tests.buffers import Allocator, state
from tests.schemes import SCHEMES, K, Scheme, candidates, merge_of


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the merge's own allocations, not those of comparing calls."""
    monkeypatch.setenv("DCP_COMM_CHECK", "0")


class Refusing(TorchDispatchMode):
    """Raises MemoryError at the n-th operation of this thread that returns new memory."""

    def __init__(self, failing: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self._failing = 0, failing

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {each.data_ptr() for each in storages((args, kwargs))} | {0}
        if any(each.data_ptr() not in given for each in storages(result)):
            self.count += 1
            if self.count == self._failing:
                raise MemoryError(f"allocation {self.count}")
        return result


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[2], SCHEMES[5]], ids=str)
def test_a_merge_whose_n_th_allocation_fails_can_be_made_again(scheme: Scheme) -> None:
    """For every n, on all ranks at once: alive, with the same result, and nothing counted twice."""

    def fn(comm: Communicator) -> int:
        merge, calm, failing = merge_of(comm, scheme, 3, k=2, chunk_rows=2), Refusing(0), 0
        scores, ids, lengths = candidates(3, k=2)
        inputs = scores.fill_(1.0), ids, lengths  # all tie: no row is certified
        with calm:
            want = merge(*inputs).ids
        for failing in range(1, calm.count + 1):
            with Refusing(failing), pytest.raises(MemoryError, match=f"allocation {failing}$"):
                merge(*inputs)
            comm.check()
            # Beside finished merges, the chunk of two rows that some emitted before they failed.
            assert int(merge.uncertified) - 3 * failing in range(0, 2 * failing + 1, 2)
            assert torch.equal(merge(*inputs).ids, want)
        return failing

    assert min(run_ranks(fn, 2, timeout=500)) > 100


def test_a_result_or_scratch_that_cannot_be_allocated_sends_nothing() -> None:
    """So that one rank alone may fail before its first exchange, and come back."""

    def fn(comm: Communicator) -> list[list[int]]:
        merge, counts = merge_of(comm, SCHEMES[0], 5), []
        for failing in range(1, 5):  # ids, counts, certificates, scratch
            comm.ledger.reset()
            if comm.rank == 1:
                with Refusing(failing), pytest.raises(MemoryError):
                    merge(*candidates(5))
                assert not comm.ledger.by_op
            counts.append(merge(*candidates(5)).counts.tolist())
        return counts

    assert run_ranks(fn, 3) == [[[K] * 5] * 4] * 3


def test_a_workspace_whose_n_th_allocation_fails_serves_the_next_merge() -> None:
    """Growth by a first merge, the lock of both slots, one rank failing alone: all is as before."""

    def fn(comm: Communicator, failing: int) -> int:
        small, large = (merge_of(comm, SCHEMES[0], rows) for rows in (2, 6))
        allocator = Allocator(*((failing,) if comm.rank == 1 else ()))
        workspace, failures = Workspace(slots=2, allocator=allocator), 0
        for merge, slot in ((small, 0), (large, 0), (small, 1), (large, 1)):
            rows = 2 if merge is small else 6
            before = state(workspace)
            try:
                result = merge(*candidates(rows), workspace=workspace.slot(slot))
            except MemoryError:
                failures += 1
                assert state(workspace) == before
                result = merge(*candidates(rows), workspace=workspace.slot(slot))
            assert result.counts.tolist() == [K] * rows
            workspace.reserve(*merge.specs(), owner="merge")
        workspace.lock()
        assert len(allocator.asked) == 3 + failures
        return failures

    for failing in range(1, 4):
        assert run_ranks(fn, 2, failing) == [0, 1]
