"""run_ranks: results in rank order, the error that counts, the caller's modes, a bound on all."""

import threading
import time

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommMismatch, CommPeerLost, CommTimeout
from dcp_comm.testing import run_ranks


class Original(Exception):
    """What a rank raises by itself."""


def gather(comm: Communicator) -> list[int]:
    slots = torch.full((comm.size,), -1)
    comm.all_gather_into(slots, torch.tensor(comm.rank))
    return slots.tolist()


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_results_stand_in_rank_order(size: int) -> None:
    def work(comm: Communicator, *more: object) -> tuple[object, ...]:
        time.sleep(0.01 * (comm.size - comm.rank))
        return comm.rank, comm.size, gather(comm), *more

    wanted = [(rank, size, list(range(size)), "a", 2) for rank in range(size)]
    assert run_ranks(work, size, "a", 2) == wanted


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "2", None])
def test_a_bad_size_is_refused(size: object) -> None:
    with pytest.raises(CommArgumentError, match=r"run_ranks: size: got .*, need a whole number"):
        run_ranks(gather, size)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), None])
def test_a_bad_timeout_is_refused(timeout: float) -> None:
    with pytest.raises(CommArgumentError, match="run_ranks: timeout"):
        run_ranks(gather, 2, timeout=timeout)


@pytest.mark.parametrize("raiser", range(4))
def test_the_original_error_is_raised_and_not_the_waiters(raiser: int) -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == raiser:
            time.sleep(0.02)
            raise Original(f"rank {comm.rank}")
        gather(comm)

    started = time.monotonic()
    for _ in range(5):
        with pytest.raises(Original, match=f"rank {raiser}") as caught:
            run_ranks(work, 4)
        assert f"raised on rank {raiser} of 4" in caught.value.__notes__
    assert time.monotonic() - started < 5


def test_an_error_that_a_waiter_makes_of_a_lost_peer_is_its_own() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            try:
                gather(comm)
            except CommPeerLost as error:
                raise Original("what the waiter makes of it") from error

    with pytest.raises(Original, match="what the waiter makes of it"):
        run_ranks(work, 2)


def test_ranks_that_wait_for_one_that_returned_are_told_at_once() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank != 1:
            gather(comm)

    started = time.monotonic()
    with pytest.raises(CommPeerLost, match="rank 1 has closed its communicator"):
        run_ranks(work, 3)
    assert time.monotonic() - started < 1


def test_a_mismatch_is_raised_over_a_lost_peer() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.all_reduce(torch.zeros(3))
        else:
            comm.broadcast(torch.zeros(3), 0)

    with pytest.raises(CommMismatch, match=r"all_reduce float32 x 3 sum[^$]*broadcast"):
        run_ranks(work, 3)


def test_a_missing_rank_is_named_when_time_is_up() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            time.sleep(1.5)
        else:
            gather(comm)

    started = time.monotonic()
    with pytest.raises(CommTimeout, match=r"not matched within 0.5 s; missing rank 2"):
        run_ranks(work, 3, timeout=0.5)
    assert time.monotonic() - started < 3


def test_a_rank_that_hangs_for_ever_is_named_and_left_behind() -> None:
    release = threading.Event()

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            release.wait()

    started = time.monotonic()
    with pytest.raises(CommTimeout, match=r"rank 1 did not end within 0.3 s"):
        run_ranks(work, 3, timeout=0.3)
    assert time.monotonic() - started < 3
    release.set()


def test_the_callers_modes_reach_the_ranks() -> None:
    def modes(comm: Communicator) -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    assert run_ranks(modes, 2) == [(True, False)] * 2
    with torch.no_grad():
        assert run_ranks(modes, 2) == [(False, False)] * 2
    with torch.inference_mode():
        assert run_ranks(modes, 2) == [(False, True)] * 2


def test_communication_works_in_inference_mode() -> None:
    with torch.inference_mode():
        assert run_ranks(gather, 3) == [[0, 1, 2]] * 3


def test_a_ranks_exit_is_an_error_too() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            raise SystemExit(3)
        gather(comm)

    with pytest.raises(SystemExit):
        run_ranks(work, 2)


def test_runs_do_not_see_one_another() -> None:
    def outer(comm: Communicator) -> list[list[int]]:
        inner = run_ranks(gather, 2)
        return [*inner, gather(comm)]

    assert run_ranks(outer, 3) == [[[0, 1], [0, 1], [0, 1, 2]]] * 3


def test_the_communicator_is_closed_afterwards() -> None:
    comms: list[Communicator] = run_ranks(lambda comm: comm, 2)
    assert all("dead" in repr(comm) for comm in comms)
