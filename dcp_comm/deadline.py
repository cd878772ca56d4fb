"""The one deadline: every wait of this library is bounded by it and lets signal handlers run."""

import math
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from dcp_comm import exits
from dcp_comm.errors import CommArgumentError, CommTimeout, refusal
from dcp_comm.latch import Latch

_SPIN_SECONDS = 200e-6
_LONGEST_NAP = 2e-3
_LONGEST_NATIVE_WAIT = 86_400.0
_PATIENCE_SECONDS = 0.3
_PATIENT_SHARE = 0.125

T = TypeVar("T")


def seconds(value: object, operation: str, argument: str) -> float:
    """Return ``value`` as a timeout in seconds: finite and positive, whatever its size.

    Raises:
        CommArgumentError: ``value`` is no number, is not finite, or is not above zero.
    """
    number = _number(value)
    if not math.isfinite(number) or number <= 0:
        raise CommArgumentError(
            refusal(
                operation,
                argument,
                repr(value),
                "a finite number of seconds above 0",
                remedy="Waiting for ever is not offered; give a large number instead",
            )
        )
    return number


def _number(value: object) -> float:
    """The value as a float; NaN for what is no number, True among it."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


class Deadline:
    """A point in monotonic time until which one whole operation may wait.

    Args:
        timeout: Seconds from now, already validated by `seconds`.
        latch: Where given, a wait also ends with the latched error as soon as one is set, so that
            `close` and `abort` from another thread wake the waiter.
        late: Where given, called by a wait that has lasted for `patience`, and again each time that
            it has lasted twice as long; what it raises ends the wait.
    """

    def __init__(
        self,
        timeout: float,
        latch: Latch | None = None,
        late: Callable[[], None] | None = None,
    ) -> None:
        self.timeout = timeout
        self._end = time.monotonic() + timeout
        self._latch, self._late = latch, late

    @property
    def patience(self) -> float:
        """Seconds of waiting that are nothing out of the ordinary."""
        return min(_PATIENCE_SECONDS, self.timeout * _PATIENT_SHARE)

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def expired(self) -> bool:
        """Whether the point in time has passed."""
        return time.monotonic() >= self._end

    def native(self) -> timedelta:
        """What is left as torch's C++ waits take it, at least a millisecond, at most a day."""
        return timedelta(seconds=min(max(self.remaining(), 1e-3), _LONGEST_NATIVE_WAIT))

    def interrupt(self) -> None:
        """Raise the latched error if the communicator died meanwhile."""
        if self._latch is not None:
            self._latch.check()

    def poll(self, done: Callable[[], bool]) -> bool:
        """Wait until ``done()`` holds; return False at the deadline.

        Spins briefly, then naps: an application's signal handler runs between two naps.
        """
        started = time.monotonic()
        nap, late_after = 20e-6, self.patience
        while not done():
            self.interrupt()
            now = time.monotonic()
            if now >= self._end:
                return False
            if self._late is not None and now - started > late_after:
                late_after *= 2
                self._late()
            elif now - started > _SPIN_SECONDS:
                time.sleep(min(nap, self._end - now))
                nap = min(nap * 1.5, _LONGEST_NAP)
            else:
                time.sleep(0)
        return True

    def run(self, function: Callable[[], T], what: str) -> T:
        """Run a call that may block in C in a daemon thread and abandon it at the deadline.

        Raises:
            CommTimeout: ``function`` had not returned in time; its thread is left behind.
            BaseException: Whatever ``function`` raised.
        """
        box: list[T] = []
        failure: list[BaseException] = []
        ended = threading.Event()

        def body() -> None:
            try:
                box.append(function())
            except BaseException as error:
                failure.append(error)
            finally:
                ended.set()

        exits.start_daemon(body, what)
        if not self.poll(ended.is_set):
            raise CommTimeout(f"{what}: not finished within {self.timeout:g} s")
        if failure:
            raise failure.pop()  # which this frame must not hold: its traceback holds the frame
        return box[0]
