"""How samples are taken and a budget is dealt; and that nothing wrong is timed."""

import time

import pytest
import torch

from dcp_comm.cli.bench import timing
from dcp_comm.cli.bench.timing import WANTED, Budget, Clock, copy_gb_s
from dcp_comm.cli.bench.work import Work, WrongRows, measure, poison
from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from tests.cli.bench_cases import CPU


def test_a_timing_has_as_many_samples_as_the_time_allows() -> None:
    calls: list[int] = []
    found = Clock(CPU).time(lambda: calls.append(0), float("inf"))
    assert found.samples == WANTED
    assert 1 <= found.calls <= timing._MOST_CALLS
    assert 0 < found.low <= found.us <= found.high
    assert len(calls) > WANTED * found.calls
    assert Clock(CPU).time(lambda: None, 0).samples == timing._LEAST


def test_slow_work_is_called_once_a_sample() -> None:
    calls: list[int] = []

    def slow() -> None:
        calls.append(0)
        time.sleep(0.01)

    found = Clock(CPU).time(slow, 0)
    assert found.calls == 1
    assert found.us >= 10_000
    assert len(calls) == 1 + found.samples


def test_the_slowest_rank_counts() -> None:
    def fn(comm: Communicator) -> tuple[list[float], float]:
        clock = Clock(CPU, comm)
        us = clock.time(lambda: time.sleep(0.02 * comm.rank), 0).us
        return clock.slowest([comm.rank, -comm.rank]), us

    (one, us), (other, same) = run_ranks(fn, 2)
    assert one == other == [1, 0]
    assert us == same >= 20_000


def test_a_budget_deals_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    budget = Budget(30, 3, Clock(CPU))
    assert budget.next() == 10
    now += 20
    assert budget.next() == 5
    now += 10
    assert budget.next() == 0
    assert Budget(float("inf"), 2, Clock(CPU)).next() == float("inf")


def test_the_latest_rank_decides() -> None:
    """All take a part or none, however their clocks stand."""

    def fn(comm: Communicator) -> float:
        return Budget(10 + 5 * comm.rank, 1, Clock(CPU, comm)).next()

    one, other = run_ranks(fn, 2)
    assert one == other <= 10


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_poison_is_no_result(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    poison(tensor)
    assert not ((tensor >= -1) & (tensor < 1 << 30)).any()


def test_a_wrong_row_ends_the_timing_before_it_begins() -> None:
    output, calls = torch.zeros(2, dtype=torch.int32), []

    def call() -> None:
        calls.append(0)
        output[0] = 1

    work = Work("half", call, [output], lambda: int((output != 1).sum()))
    with pytest.raises(WrongRows, match="half, eager: 1 rows are wrong"):
        measure(work, Clock(CPU), "eager", 1.0)
    assert len(calls) == 1


def test_a_wrong_row_on_one_rank_ends_it_on_all() -> None:
    def fn(comm: Communicator) -> str:
        work = Work("one", lambda: None, [], lambda: comm.rank)
        with pytest.raises(WrongRows) as raised:
            measure(work, Clock(CPU, comm), "eager", 0)
        return str(raised.value)

    assert len(set(run_ranks(fn, 2))) == 1


def test_copy_bandwidth_is_measured() -> None:
    assert copy_gb_s(CPU) > 0.01
