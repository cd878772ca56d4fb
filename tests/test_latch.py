"""The latched-dead state: the first failure answers for ever."""

import threading
import weakref

import pytest

from dcp_comm.errors import CommClosed, CommPeerLost, CommTimeout
from dcp_comm.latch import Latch


def test_alive_until_it_fails() -> None:
    latch = Latch()
    latch.check()
    assert latch.cause is None


def test_the_first_cause_wins_and_is_raised_anew_each_time() -> None:
    latch, first = Latch(), CommTimeout("rank 2 is missing")
    latch.fail(first)
    latch.fail(CommClosed("closed"))
    raised = []
    for _ in range(2):
        with pytest.raises(CommTimeout, match="rank 2 is missing") as caught:
            latch.check()
        assert latch.holds(caught.value)
        assert not latch.holds(CommClosed("rank 2 is missing"))
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert first not in raised


def test_what_an_error_passed_through_is_let_go() -> None:
    """A frame may hold the connections that peers wait to see closed."""

    class Connection:
        """Only weakly held here."""

    latch = Latch()
    seen: list[weakref.ref[Connection]] = []

    def fail() -> None:
        connection = Connection()
        seen.append(weakref.ref(connection))
        raise CommTimeout("late")

    try:
        fail()
    except CommTimeout as error:
        latch.fail(error)
    assert seen[0]() is None
    assert latch.cause is not None


def test_one_of_many_threads_wins() -> None:
    latch, causes = Latch(), [CommPeerLost(f"{n}") for n in range(8)]
    threads = [threading.Thread(target=latch.fail, args=(cause,)) for cause in causes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(latch.holds(cause) for cause in causes)
