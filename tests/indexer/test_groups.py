"""Indexers of several groups side by side: TP8/DCP4 as two groups of four, and a draft's own."""

from dataclasses import replace

import pytest

from dcp_comm.communicator import Communicator
from dcp_comm.indexer import IndexerLimits
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import Workspace
from tests.indexer.cases import Case, a_step, call, check, compare, poison

LIMITS = IndexerLimits(5, 2, 3, 12, 3, 48, next_n=3, interleave=2, page_size=4)


def steps(seed: int) -> Case:
    """A mixed step whose requests are others for every seed."""
    drawn = (
        a_step("decode", [48 - seed, 7, -1], [3, 3, 3], seed=seed),
        a_step("prefill", [40, 2 + seed], [9, 2], seed=seed + 100),
    )
    return Case(LIMITS, 1, drawn)


@pytest.mark.parametrize("output", ["local", "global"])
def test_two_groups_of_four_and_a_draft_group_of_another_size(output: str) -> None:
    """Eight ranks; each group has requests of its own, calls alternate, workspaces are shared."""

    def fn(comm: Communicator) -> None:
        target, draft = comm.split(comm.rank // 4), comm.split(comm.rank % 4)
        assert target is not None
        assert draft is not None
        assert (target.rank, target.size) == (comm.rank % 4, 4)
        assert (draft.rank, draft.size) == (comm.rank // 4, 2)
        workspace, served = Workspace(), []
        for group, seed in ((target, comm.rank // 4), (draft, 10 + comm.rank % 4)):
            case = replace(steps(seed), size=group.size, output=output, chunk_rows=4)
            indexer = case.indexer(group)
            indexer.reserve(workspace)
            served.append((group, case, indexer))
        workspace.lock()
        results: list[list[tuple[object, object]]] = [[], []]
        for n in range(2):
            for (group, case, indexer), got in zip(served, results, strict=True):
                poison(workspace, 0xA5)
                result = call(indexer, case, group, case.steps[n], workspace)
                got.append((result.ids.numpy(), result.counts.numpy()))
        for (group, case, _), got in zip(served, results, strict=True):
            compare(case, group.rank, got)  # type: ignore[arg-type]

    run_ranks(fn, 8)


def test_a_rank_may_stand_elsewhere_in_the_interleave() -> None:
    """shard_rank says whose tokens the pages hold."""
    check(replace(steps(0), size=3, places=(2, 0, 1)))
    check(replace(steps(1), size=3, places=(1, 2, 0), output="slots", storage="fp8"))
