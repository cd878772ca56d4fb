"""No merge gives out a result that its ranks did not make together; over real gloo and the fake."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.poison import PATTERN
from dcp_comm.settings import Settings
from dcp_comm.testing import run_ranks
from dcp_comm.testing.faults import Drop, FaultPlan
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from tests.threads import join, joiners
from tests.topk.cases import rows_of

ROWS, K, CHUNKS = 6, 4, 3
POISONED = int(np.frombuffer(bytes([PATTERN] * 4), dtype=np.int32)[0])
PLACES: dict[str, Callable[[FaultPlan, Communicator], None]] = {
    "program": FaultPlan.into_program,
    "backend": FaultPlan.into_backend,
}


def merged(comm: Communicator, out: MergeResult | None = None) -> DcpCommError | MergeResult:
    """A merge of several equal chunks, once prepared."""
    merge = TopKMerge(comm, K, ROWS, strategy="gather", chunk_rows=ROWS // CHUNKS)
    merge.prepare()
    try:
        return merge(*rows_of(ROWS), out=out)
    except DcpCommError as error:
        return error


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_chunk_left_out_over_gloo_gives_nobody_a_result(chunk: int, place: str) -> None:
    """All chunks are alike, so that the rank which left one out takes the next one for it."""
    plan = FaultPlan(Drop(1, chunk))

    def work(comm: Communicator) -> tuple[Any, float]:
        merge = TopKMerge(comm, K, ROWS, strategy="gather", chunk_rows=ROWS // CHUNKS)
        merge.prepare()
        PLACES[place](plan, comm)
        started = time.monotonic()
        try:
            return merge(*rows_of(ROWS)), 0.0
        except DcpCommError as error:
            return error, time.monotonic() - started

    found = join(joiners(3, settings=Settings(check="merge")), work, timeout=2.0)
    assert plan.seen == plan.armed
    for error, seconds in found:
        assert isinstance(error, CommMismatch | CommTimeout | CommPeerLost), error
        assert seconds < 4
    kinds = {type(error) for error, _ in found}
    if place == "program":
        assert kinds == {CommMismatch}
        assert all("end in merge/2" in str(error) for error, _ in found)
    else:
        assert kinds & {CommTimeout, CommMismatch}


def test_a_merge_that_goes_well_is_confirmed_once() -> None:
    def work(comm: Communicator) -> int:
        merge = TopKMerge(comm, K, ROWS, strategy="gather", chunk_rows=2)
        merge.prepare()
        before = comm.ledger.by_op["fingerprint"].calls
        merge(*rows_of(ROWS))
        return comm.ledger.by_op["fingerprint"].calls - before

    for check, wanted in (("0", 0), ("merge", 2), ("all", 2 + CHUNKS)):
        settings = Settings(check=check)
        assert join(joiners(2, settings=settings), work) == [wanted] * 2


def test_nothing_is_confirmed_where_nothing_was_exchanged() -> None:
    def work(comm: Communicator) -> tuple[int, int]:
        merge = TopKMerge(comm, K, ROWS, strategy="gather", output="local")
        merge.prepare()
        before = comm.ledger.by_op["fingerprint"].calls
        for rows in (0, 2):
            job = merge.begin(rows, longest=K)
            job.pack(*rows_of(rows))
            job.finish()
        return comm.ledger.by_op["fingerprint"].calls - before, comm.ledger.calls

    counts = join(joiners(2, settings=Settings(check="merge")), work)
    assert [count for count, _ in counts] == [2, 2]


@pytest.mark.parametrize("debug", [False, True])
def test_debug_mode_leaves_nothing_plausible_behind(
    debug: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier merge wrote is still there otherwise."""
    monkeypatch.setenv("DCP_COMM_CHECK", "merge")
    monkeypatch.setenv("DCP_COMM_DEBUG", "1" if debug else "0")
    plan = FaultPlan(Drop(1, 2))

    def work(comm: Communicator) -> list[int]:
        out = MergeResult.allocate(ROWS, K, comm.device)
        assert merged(comm, out) is out
        assert out.ids[0, 0] >= 0
        plan.into_program(comm)
        assert isinstance(merged(comm, out), CommMismatch)
        assert bool(out.certified.any()) != debug
        return [*out.ids.unique().tolist(), *out.counts.unique().tolist()]

    for values in run_ranks(work, 3):
        assert (values == [POISONED, POISONED]) == debug


def test_debug_mode_poisons_scratch_and_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCP_COMM_DEBUG", "1")

    def work(comm: Communicator) -> bool:
        merge = TopKMerge(comm, K, ROWS, strategy="gather")
        merge.prepare()
        scratch = [torch.empty(spec.shape, dtype=spec.dtype) for spec in merge.specs()]
        rows = rows_of(ROWS)
        first = merge(*rows, scratch=scratch)
        merge.begin(ROWS, scratch=scratch)
        begun = all((each.view(torch.uint8) == PATTERN).all() for each in scratch)
        second = merge(*rows, scratch=scratch)
        return begun and torch.equal(first.ids, second.ids)

    assert run_ranks(work, 2) == [True, True]


@pytest.mark.parametrize("debug", ["0", "1"])
def test_debug_mode_poisons_outputs_of_calls_that_failed(
    debug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCP_COMM_DEBUG", debug)
    monkeypatch.setenv("DCP_COMM_CHECK", "0")

    def work(comm: Communicator) -> tuple[list[int], list[int]]:
        if comm.rank == 1:
            return [], []
        output, input = torch.full((3, 2), 7), torch.full((2,), 9)
        with pytest.raises(CommPeerLost):
            comm.all_gather_into(output, input)
        return output.view(torch.uint8).unique().tolist(), input.tolist()

    found = run_ranks(work, 3)
    wanted = [PATTERN] if debug == "1" else [0, 7]
    assert found[0] == found[2] == (wanted, [9, 9])
