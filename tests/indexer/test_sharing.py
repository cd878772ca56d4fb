"""A selection outlives its call: later layers and draft steps read it, others count it."""

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.indexer import IndexerLimits
from dcp_comm.testing import run_ranks
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.indexer.cases import POISONS, Case, a_step, call, compare, poison

LIMITS = IndexerLimits(4, 2, 3, 12, 3, 48, next_n=3, interleave=2, page_size=4)


@pytest.mark.parametrize("output", ["local", "slots", "global"])
def test_layers_and_draft_steps_share_a_selection(output: str) -> None:
    """The caller's ``out`` stands while other layers index in the same workspace, poisoned.

    Layers 0 and 3 index, 1, 2 and 4 share; a draft step of fewer rows then writes into the first
    rows of the buffer that all of them read, and leaves the rest alone.
    """
    layers = {n: a_step("decode", [48, 9, 30], [3, 3, 3], seed=n) for n in (0, 3)}
    draft = a_step("decode", [48, 10], [1, 1], seed=9)

    def fn(comm: Communicator) -> None:
        case = Case(LIMITS, 3, (), output)
        indexer, workspace = case.indexer(comm), Workspace()
        indexer.reserve(workspace)
        workspace.lock()
        shared = MergeResult.allocate(9, LIMITS.k, "cpu")
        other = MergeResult.allocate(9, LIMITS.k, "cpu")
        for layer in range(5):
            source = max(each for each in layers if each <= layer)
            if layer == source:
                assert call(indexer, case, comm, layers[layer], workspace, shared) is shared
            call(indexer, case, comm, a_step("decode", [5], [1], seed=layer), workspace)
            call(indexer, case, comm, a_step("prefill", [9], [9]), workspace, other)
            poison(workspace, POISONS[layer % len(POISONS)])
            expect(case, comm, source, shared)
        call(indexer, case, comm, draft, workspace, shared.part(slice(0, 2)))
        part = shared.part(slice(0, 2))
        want, counts = case.expected(draft, comm.rank)
        np.testing.assert_array_equal(part.ids.numpy(), want)
        np.testing.assert_array_equal(part.counts.numpy(), counts)
        behind = case.expected(layers[3], comm.rank)[0][2:]
        np.testing.assert_array_equal(shared.ids[2:].numpy(), behind)

    def expect(case: Case, comm: Communicator, source: int, shared: MergeResult) -> None:
        found = [(shared.ids.numpy(), shared.counts.numpy())]
        compare(Case(case.limits, 3, (layers[source],), output), comm.rank, found)

    run_ranks(fn, 3)


@pytest.mark.parametrize("output", ["local", "slots", "global"])
def test_lists_are_compact_and_counted(output: str) -> None:
    """Valid first, -1 behind, as counts say; rows of padding and ranks without tokens too."""
    step = a_step("prefill", [3, -1, 40], [3, 2, 7], seed=5)

    def fn(comm: Communicator) -> None:
        case = Case(LIMITS, 4, (step,), output)
        result = call(case.indexer(comm), case, comm, step, Workspace())
        valid = result.ids >= 0
        assert torch.equal(valid.sum(1), result.counts)
        assert torch.equal(valid, torch.arange(LIMITS.k) < result.counts[:, None])

    run_ranks(fn, 4)


def test_all_counts_are_gathered_on_request_alone() -> None:
    """One small message when asked for; columns add up to every row's winners."""
    step = a_step("decode", [48, 1, -1], [3, 2, 1], seed=3)

    def fn(comm: Communicator) -> None:
        case = Case(LIMITS, 3, (step,), places=(2, 0, 1))
        indexer = case.indexer(comm)
        result = call(indexer, case, comm, step, Workspace())
        comm.ledger.reset()
        found = indexer.all_counts(result)
        assert comm.ledger.by_op["all_gather_into"].calls == 1
        want = np.stack([case.expected(step, rank)[1] for rank in range(3)])
        np.testing.assert_array_equal(found.numpy(), want)
        np.testing.assert_array_equal(found.sum(0).numpy(), step.winners(LIMITS.k)[1])
        kept = torch.empty(3, step.rows, dtype=torch.int32)
        assert indexer.all_counts(result, kept) is kept
        assert torch.equal(kept, found)
        wide = MergeResult(result.ids, torch.empty(step.rows, 2).int()[:, 0], result.certified)
        wide.counts.copy_(result.counts)
        assert torch.equal(indexer.all_counts(wide), found)
        with pytest.raises(CommArgumentError, match="output: got"):
            indexer.all_counts(result, kept.long())

    run_ranks(fn, 3)


def test_counts_are_not_gathered_otherwise() -> None:
    """A step moves what its merge moves: one gather here, of runs."""
    step = a_step("decode", [48], [1])

    def fn(comm: Communicator) -> int:
        case = Case(LIMITS, 2, (step,), "slots", options={"strategy": "gather"})
        indexer = case.indexer(comm)
        indexer.prepare()
        comm.ledger.reset()
        call(indexer, case, comm, step, Workspace())
        return comm.ledger.by_op["all_gather_into"].calls

    assert run_ranks(fn, 2) == [1, 1]
