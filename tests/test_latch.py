"""The latched-dead state: the first failure answers for ever."""

import threading

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
        assert caught.value.__cause__ is first
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert first not in raised


def test_one_of_many_threads_wins() -> None:
    latch, causes = Latch(), [CommPeerLost(f"{n}") for n in range(8)]
    threads = [threading.Thread(target=latch.fail, args=(cause,)) for cause in causes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert latch.cause in causes
