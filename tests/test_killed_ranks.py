"""Ranks that are killed or frozen at any call of a merge, over gloo: nobody hangs, nobody lies."""

import signal
import time
from collections.abc import Callable

import pytest

from dcp_comm.testing.faults import Delay, Fault, Kill, Stop
from tests.faulty_forks import CALLS, ordered
from tests.forks import forked
from tests.processes import Process, Report, of_topic

pytestmark = pytest.mark.xdist_group("processes")

SHORT_SECONDS = 2.0
RANKS = 3

Record = Callable[[str, object], None]


def where(strategies: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Every rank at every call of a merge."""
    return [
        (strategy, victim, call)
        for strategy in strategies
        for victim in range(RANKS)
        for call in range(CALLS[strategy])
    ]


def survivors(started: list[Process], victim: int) -> list[list[Report]]:
    """All that the others reported."""
    return [process.rest() for rank, process in enumerate(started) if rank != victim]


def all_lose_the_killed_rank(
    strategy: str, kill: Kill, *others: Fault, size: int = RANKS, **more: str
) -> float:
    """Run a merge in which a rank is killed; the most seconds until a survivor had raised."""
    variables = {"FAULTS": ordered(kill, *others), "STRATEGY": strategy, **more}
    with forked("tests.faulty_forks:merge", size, **variables) as started:
        ready, *struck = started[kill.rank].rest()
        assert (ready["armed"], struck[-1]["topic"]) == (1, "struck")
        assert (struck[-1]["kind"], struck[-1]["call"]) == ("Kill", kill.call)
        assert started[kill.rank].wait() == -signal.SIGKILL
        slowest = 0.0
        for reports in survivors(started, kill.rank):
            merge, close = of_topic(reports, "merge"), of_topic(reports, "close")
            assert merge["error"] == merge["again"]["error"] == "CommPeerLost", merge
            assert merge["again"]["text"] == merge["text"]
            assert close["error"] == "NoneType"
            assert close["seconds"] < 1
            slowest = max(slowest, merge["at"] - struck[-1]["at"])
    return slowest - (kill.after or 0.0)


@pytest.mark.parametrize(("strategy", "victim", "call"), where(("gather",)))
def test_all_lose_a_rank_killed_at_any_chunk_within_two_seconds(
    strategy: str, victim: int, call: int, record_property: Record
) -> None:
    slowest = all_lose_the_killed_rank(strategy, Kill(victim, call))
    record_property("seen", f"CommPeerLost on all survivors in {slowest:.2f} s")
    assert slowest < 2


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "victim", "call"), where(("owner", "splitter")))
def test_all_lose_a_rank_killed_at_any_call_of_any_strategy(
    strategy: str, victim: int, call: int
) -> None:
    assert all_lose_the_killed_rank(strategy, Kill(victim, call)) < 2


@pytest.mark.parametrize(("victim", "check"), [(0, "all"), (1, "0")])
def test_ranks_that_exchange_nothing_with_the_killed_one_lose_it_too(
    victim: int, check: str
) -> None:
    """In a ring of four the rank opposite hears of it from its neighbours, which live on."""
    more = {"DCP_COMM_CHECK": check, "CALL_TIMEOUT": "3", "LINGER": "4"}
    assert all_lose_the_killed_rank("gather", Kill(victim, 1), size=4, **more) < 2


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_all_lose_a_rank_killed_while_it_waits_inside_a_gather(victim: int) -> None:
    """A peer is late for the second chunk, and the victim ends while it waits for that peer."""
    late = (victim + 1) % RANKS
    kill, delay = Kill(victim, 1, after=0.2), Delay(late, 1, seconds=0.5)
    assert all_lose_the_killed_rank("gather", kill, delay) < 2


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_between_meeting_and_connecting_is_awaited_until_the_deadline(
    victim: int, record_property: Record
) -> None:
    target = "tests.faulty_forks:dies_in_init"
    with forked(target, RANKS, VICTIM=f"{victim}") as started:
        assert of_topic(started[victim].rest(), "struck")
        for reports in survivors(started, victim):
            told = of_topic(reports, "init")
            assert told["error"] in ("CommTimeout", "CommPeerLost")
            assert told["seconds"] < SHORT_SECONDS + 1
            record_property("seen", f"{told['error']} in {told['seconds']:.2f} s")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_frozen_rank_times_out_and_gets_no_result_when_it_wakes(
    victim: int, record_property: Record
) -> None:
    order = ordered(Stop(victim, 20))
    variables = {"FAULTS": order, "CALL_TIMEOUT": f"{SHORT_SECONDS}"}
    with forked("tests.faulty_forks:gathers", 2, **variables) as started:
        frozen, waiter = started[victim], started[1 - victim]
        struck = [frozen.next() for _ in range(2)][-1]
        told = of_topic(waiter.rest(), "gather")
        assert told["error"] == told["again"]["error"] == "CommTimeout"
        assert told["seconds"] >= SHORT_SECONDS
        assert told["at"] - struck["at"] < SHORT_SECONDS + 1
        frozen.signal(signal.SIGCONT)
        woken = of_topic(frozen.rest(), "gather")
        assert woken["error"] in ("CommPeerLost", "CommTimeout")
        assert woken["again"]["error"] == woken["error"]
        record_property("seen", f"CommTimeout in {told['seconds']:.2f} s; {woken['error']} when up")


def test_a_short_freeze_is_waited_for() -> None:
    """Half of the timeout: both ranks get their right result."""
    order = ordered(Stop(1, 1))
    with forked("tests.faulty_forks:merge", RANKS, FAULTS=order, STRATEGY="gather") as started:
        struck = [started[1].next() for _ in range(2)][-1]
        assert struck["kind"] == "Stop"
        time.sleep(0.5)
        started[1].signal(signal.SIGCONT)
        for process in started:
            merge = of_topic(process.rest(), "merge")
            assert (merge["text"], merge["again"]["error"]) == ("right", "list")
