"""Merges over ranks that are late, mistaken or silent at a chunk, whatever the ranks compare."""

from dataclasses import replace

import numpy as np
import pytest

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommMismatch, CommPeerLost, DcpCommError
from dcp_comm.testing import run_ranks
from dcp_comm.testing.faults import Delay, Drop, Fault, FaultPlan, Raise, WrongDtype, WrongShape
from dcp_comm.topk.merge import TopKMerge
from tests.topk.cases import Case, merge_on_a_rank, rows_of
from tests.topk.scores import drawn


@pytest.fixture(params=["0", "merge", "all"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each level of ``DCP_COMM_CHECK`` in turn."""
    monkeypatch.setenv("DCP_COMM_CHECK", request.param)
    return str(request.param)


def a_case(strategy: str = "gather") -> Case:
    """Nine rows in three chunks on three ranks."""
    rng = np.random.default_rng(3)
    scores, lengths = drawn("few", 9, 60, rng), np.full(9, 60)
    return Case(scores, lengths, 3, 5, chunk_rows=3, strategy=strategy)


@pytest.mark.parametrize("strategy", ["gather", "owner"])
def test_a_merge_waits_for_late_ranks(strategy: str, level: str) -> None:
    """Each rank sleeps before other chunks."""
    case, rng = a_case(strategy), np.random.default_rng(8)
    late = (Delay(rank, call, rng.uniform(0, 0.05)) for rank in range(3) for call in range(3))
    plan = FaultPlan(*late)

    def fn(comm: Communicator) -> None:
        plan.into_backend(comm)
        ids, _ = case.expected(comm.rank)
        np.testing.assert_array_equal(merge_on_a_rank(comm, case).ids, ids)

    run_ranks(fn, 3)
    assert plan.seen == plan.armed
    assert len(plan.seen) == 9


def merge_error(comm: Communicator) -> type[BaseException] | None:
    """How a merge ends."""
    try:
        merge_on_a_rank(comm, a_case())
    except DcpCommError as error:
        return type(error)
    return None


@pytest.mark.parametrize("mistake", [WrongShape, WrongDtype])
def test_a_chunk_that_is_another_on_one_rank_is_a_mismatch(
    mistake: type[Fault], level: str
) -> None:
    plan = FaultPlan(mistake(1, 1))

    def fn(comm: Communicator) -> type[BaseException] | None:
        plan.into_program(comm)
        return merge_error(comm)

    assert run_ranks(fn, 3) == [CommMismatch] * 3
    assert plan.seen == plan.armed


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_a_chunk_that_one_rank_leaves_out_fails_on_all_ranks(chunk: int, level: str) -> None:
    """The early ``continue`` of one rank in its loop over chunks; unseen there at level 0."""
    plan = FaultPlan(Drop(1, chunk))

    def fn(comm: Communicator) -> type[BaseException] | None:
        plan.into_program(comm)
        return merge_error(comm)

    found = run_ranks(fn, 3)
    if level == "0":
        assert found[0] is found[2] is CommPeerLost
    else:
        assert found == [CommMismatch] * 3
    assert plan.seen == plan.armed


@pytest.mark.parametrize("rows", [(2, 0, 2), (4, 4, 6), (0, 0, 1)])
def test_different_rows_are_a_mismatch_before_the_first_chunk(
    rows: tuple[int, ...], level: str
) -> None:
    """At level ``merge`` and above, on every rank; without comparison some are not told."""

    def fn(comm: Communicator) -> tuple[type[BaseException] | None, bool]:
        merge, error = TopKMerge(comm, 4, 8, strategy="gather", chunk_rows=2), None
        merge.prepare()
        try:
            merge(*rows_of(rows[comm.rank]))
        except DcpCommError as caught:
            error = type(caught)
        return error, "all_gather_into" in comm.ledger.by_op

    found = run_ranks(fn, 3)
    if level == "0":
        assert {error for error, _ in found} == {None, CommPeerLost}
    else:
        assert found == [(CommMismatch, False)] * 3


def test_a_merge_after_a_fault_of_another_communicator() -> None:
    """What died with its communicator did not harm its sibling."""
    plan = FaultPlan(Raise(1, 0))

    def fn(comm: Communicator) -> bool:
        part = comm.split(0)
        assert part is not None
        plan.into_backend(part)
        with pytest.raises((MemoryError, CommPeerLost)):
            merge_on_a_rank(part, a_case())
        case = replace(a_case(), poison=0xFF)
        return np.array_equal(merge_on_a_rank(comm, case).ids, case.expected(comm.rank)[0])

    assert run_ranks(fn, 3) == [True] * 3
    assert plan.seen == plan.armed
