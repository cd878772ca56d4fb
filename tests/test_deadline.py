"""Bounded waits: on time, interruptible, and never longer than they were told."""

import math
import threading
import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_comm.deadline import Deadline, seconds
from dcp_comm.errors import CommArgumentError, CommClosed, CommTimeout
from dcp_comm.latch import Latch


@pytest.mark.parametrize(
    "value",
    [0, -1, -1e-9, None, math.inf, -math.inf, math.nan, 10**400, "3", True, b"1", [1.0], 1j],
)
def test_what_is_no_timeout(value: object) -> None:
    with pytest.raises(CommArgumentError, match=r"^init: timeout: got .*, need a finite number"):
        seconds(value, "init", "timeout")


@given(st.floats(min_value=1e-300, max_value=1e300) | st.integers(1, 10**9))
def test_every_finite_number_above_zero_is_a_timeout(value: float) -> None:
    assert seconds(value, "init", "timeout") == value


@pytest.mark.parametrize(
    ("timeout", "least", "most"), [(1e-9, 1e-3, 1e-3), (5, 4.9, 5), (1e7, 86400, 86400)]
)
def test_native_waits_are_at_least_a_millisecond_and_at_most_a_day(
    timeout: float, least: float, most: float
) -> None:
    native = Deadline(timeout).native()
    assert timedelta(seconds=least) <= native <= timedelta(seconds=most)


def test_it_expires() -> None:
    deadline = Deadline(0.05)
    assert not deadline.expired()
    assert 0 < deadline.remaining() <= 0.05
    time.sleep(0.06)
    assert deadline.expired()
    assert deadline.remaining() == 0


def test_a_poll_ends_when_its_condition_holds_or_time_is_up() -> None:
    calls = iter([False] * 20 + [True])
    assert Deadline(60).poll(lambda: next(calls))
    started = time.monotonic()
    assert not Deadline(0.1).poll(lambda: False)
    assert 0.1 <= time.monotonic() - started < 0.5


def test_a_condition_that_holds_beats_a_deadline_that_has_passed() -> None:
    deadline = Deadline(1e-9)
    time.sleep(0.001)
    assert deadline.poll(lambda: True)


def test_a_poll_ends_when_the_latch_is_set() -> None:
    latch = Latch()
    threading.Timer(0.1, lambda: latch.fail(CommClosed("by another thread"))).start()
    started = time.monotonic()
    with pytest.raises(CommClosed, match="by another thread"):
        Deadline(60, latch).poll(lambda: False)
    assert time.monotonic() - started < 1


def test_run_returns_what_its_function_returns() -> None:
    found = Deadline(60).run(threading.current_thread, "asking")
    assert found is not threading.current_thread()
    assert found.daemon
    assert found.name == "dcp_comm asking"


def test_run_raises_what_its_function_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        Deadline(60).run(lambda: 1 // 0, "dividing")


def test_run_leaves_a_function_behind_at_the_deadline() -> None:
    release, started = threading.Event(), time.monotonic()
    with pytest.raises(CommTimeout, match=r"^sleeping: not finished within 0.1 s$"):
        Deadline(0.1).run(release.wait, "sleeping")
    assert time.monotonic() - started < 1
    release.set()


def test_run_leaves_a_function_behind_when_the_latch_is_set() -> None:
    latch, release = Latch(), threading.Event()
    latch.fail(CommClosed("over"))
    with pytest.raises(CommClosed, match="over"):
        Deadline(60, latch).run(release.wait, "sleeping")
    release.set()
