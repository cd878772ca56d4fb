"""What ranks make of faults to order, as threads over the fake backend, whatever they compare."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.testing import run_ranks
from dcp_comm.testing.faults import (
    Delay,
    Drop,
    Fault,
    FaultPlan,
    Raise,
    Swap,
    WrongDtype,
    WrongShape,
)

MISTAKES = (WrongShape, WrongDtype, Swap)
PLACES = (FaultPlan.into_program, FaultPlan.into_backend)
POISON = -7

Place = Callable[[FaultPlan, Communicator], None]


@pytest.fixture(params=["0", "merge", "all"])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each level of ``DCP_COMM_CHECK`` in turn."""
    monkeypatch.setenv("DCP_COMM_CHECK", request.param)
    return str(request.param)


@dataclass
class Told:
    """What one rank has to tell of a program: what came of each call, and how it ended."""

    outputs: list[Tensor] = field(default_factory=list)
    done: int = 0
    error: Exception | None = None
    again: Exception | None = None
    seconds: float = 0.0


def program(comm: Communicator, told: Told) -> None:
    """Four calls, each unlike the one before."""
    size, rank = comm.size, comm.rank
    told.outputs = [torch.full(shape, POISON) for shape in ((size, 4), (2 * size,), (6,), (4,))]
    gathered, exchanged, total, scattered = told.outputs
    calls: list[Callable[[], None]] = [
        lambda: comm.all_gather_into(gathered, torch.full((4,), rank)),
        lambda: comm.all_to_all_into(exchanged, torch.arange(2 * size) + 100 * rank),
        lambda: comm.all_reduce(total.fill_(rank)),
        lambda: comm.reduce_scatter_into(scattered, torch.full((size, 4), rank)),
    ]
    for call in calls:
        call()
        told.done += 1


def is_right(told: Told, rank: int, size: int) -> bool:
    """Whether all four calls gave what they should."""
    gathered, exchanged, total, scattered = (each.tolist() for each in told.outputs)
    every = sum(range(size))
    return (
        gathered == [[each] * 4 for each in range(size)]
        and exchanged == [100 * each + 2 * rank + i for each in range(size) for i in range(2)]
        and total == [every] * 6
        and scattered == [every] * 4
    )


def tell(comm: Communicator) -> Told:
    """Run the program, and say how it ended."""
    told, started = Told(), time.monotonic()
    try:
        program(comm, told)
    except (DcpCommError, MemoryError) as error:
        told.error, told.seconds = error, time.monotonic() - started
        with pytest.raises(DcpCommError) as again:
            comm.check()
        told.again = again.value
    return told


def run(plan: FaultPlan, place: Place, size: int = 3, timeout: float = 60.0) -> list[Told]:
    """Run the program on ranks that are all armed."""

    def fn(comm: Communicator) -> Told:
        place(plan, comm)
        return tell(comm)

    return run_ranks(fn, size, timeout=timeout)


@pytest.mark.parametrize("place", PLACES)
def test_nothing_ordered_is_nothing_done(place: Place, level: str) -> None:
    plan = FaultPlan()
    told = run(plan, place)
    assert all(is_right(each, rank, 3) for rank, each in enumerate(told))
    assert plan.armed == plan.seen == frozenset()


def test_what_was_armed_and_what_was_seen() -> None:
    near, far, absent = Delay(1, 3, seconds=0.0), Delay(1, 4, seconds=0.0), Drop(7, 0)
    plan = FaultPlan(near, far, absent)
    assert plan.armed == plan.seen == frozenset()
    told = run(plan, FaultPlan.into_backend)
    assert all(is_right(each, rank, 3) for rank, each in enumerate(told))
    assert plan.armed == {near, far}
    assert plan.seen == {near}


def test_parts_are_without_faults() -> None:
    plan = FaultPlan(Raise(1, 0))

    def fn(comm: Communicator) -> bool:
        plan.into_backend(comm)
        part = comm.split(0)
        assert part is not None
        return tell(part).done == 4

    assert run_ranks(fn, 3) == [True] * 3
    assert plan.armed == {Raise(1, 0)}
    assert not plan.seen


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_a_mismatch_on_every_rank(
    mistake: type[Fault], odd: int, place: Place, level: str
) -> None:
    """Found by comparison or by the fake backend itself; what it was about is not written."""
    plan = FaultPlan(mistake(odd, 1))
    for rank, told in enumerate(run(plan, place)):
        assert type(told.error) is type(told.again) is CommMismatch
        assert f"rank {odd}: " in str(told.error)
        assert str(told.again) == str(told.error)
        assert (told.outputs[1] == POISON).all()
        assert told.done == (2 if mistake is Swap and rank == odd else 1)
        assert told.outputs[0][:, 0].tolist() == [0, 1, 2]
    assert plan.seen == plan.armed == {mistake(odd, 1)}


def test_comparison_finds_a_mistake_before_the_backend_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two numbers each: what the fake backend's board got was the comparison alone."""
    monkeypatch.setenv("DCP_COMM_CHECK", "all")
    plan = FaultPlan(WrongDtype(1, 1))
    for told in run(plan, FaultPlan.into_program):
        assert "the ranks are not making the same call" in str(told.error)
        assert "all_to_all_into int64 x 6" in str(told.error)
        assert "all_to_all_into float64 x 6" in str(told.error)


@pytest.mark.parametrize("odd", [0, 1])
def test_a_dropped_call_times_out_on_the_others_and_names_the_rank(odd: int, level: str) -> None:
    plan, over = FaultPlan(Drop(odd, 2)), threading.Event()

    def fn(comm: Communicator) -> Told:
        plan.into_backend(comm)
        told = Told()
        if comm.rank != odd:
            told = tell(comm)
            over.set()
            return told
        size = comm.size
        comm.all_gather_into(torch.empty(size, 4).long(), torch.full((4,), comm.rank))
        comm.all_to_all_into(torch.empty(2 * size).long(), torch.zeros(2 * size).long())
        comm.all_reduce(torch.zeros(6).long())
        over.wait()
        return told

    found = run_ranks(fn, 3, timeout=0.5)
    errors = [told.error for rank, told in enumerate(found) if rank != odd]
    first = next(error for error in errors if isinstance(error, CommTimeout))
    assert all(isinstance(error, CommTimeout | CommPeerLost) for error in errors)
    assert f"all_reduce int64 x 6 sum: not matched within 0.5 s; missing rank {odd}" in str(first)
    assert plan.seen == plan.armed


def test_a_rank_that_goes_on_after_a_dropped_call_is_a_mismatch(level: str) -> None:
    plan = FaultPlan(Drop(1, 1))
    for told in run(plan, FaultPlan.into_program):
        assert type(told.error) is CommMismatch
        assert "all_to_all_into int64 x 6" in str(told.error)
        assert "all_reduce int64 x 6" in str(told.error)
    assert plan.seen == plan.armed


@pytest.mark.parametrize("odd", [0, 2])
def test_a_rank_that_raises_keeps_its_error_and_the_others_lose_it(odd: int, level: str) -> None:
    plan = FaultPlan(Raise(odd, 1))
    for rank, told in enumerate(run(plan, FaultPlan.into_backend)):
        assert told.done == 1
        assert told.seconds < 2
        if rank == odd:
            assert type(told.error) is MemoryError
            assert str(told.error).startswith(f"ordered for rank {odd}, call 1: all_to_all_into")
            assert "ended by MemoryError" in str(told.again)
        else:
            assert type(told.error) is CommPeerLost
            assert f"rank {odd} has failed or was aborted" in str(told.error)
    assert plan.seen == plan.armed


def test_the_error_may_be_chosen() -> None:
    plan = FaultPlan(Raise(1, 0, KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(plan, FaultPlan.into_program)
    assert plan.seen == plan.armed


@pytest.mark.parametrize("place", PLACES)
def test_late_ranks_are_waited_for(place: Place, level: str) -> None:
    """A rank is 0 to 50 ms late at every call, in program and backend alike."""
    rng = np.random.default_rng(7)
    naps = {(rank, call): rng.uniform(0, 0.05) for rank in range(3) for call in range(4)}
    plan = FaultPlan(*(Delay(*where, seconds=nap) for where, nap in naps.items()))
    started = time.monotonic()
    told = run(plan, place)
    longest = sum(max(naps[rank, call] for rank in range(3)) for call in range(4))
    assert time.monotonic() - started >= longest
    assert all(is_right(each, rank, 3) for rank, each in enumerate(told))
    assert plan.seen == plan.armed
    assert len(plan.seen) == len(naps)
