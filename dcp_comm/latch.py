"""The one latched-dead state: the first failure wins and answers every later call."""

import threading


class Latch:
    """Remembers a communicator's first failure; set once, never cleared, safe from any thread.

    It keeps a copy: an error that was raised holds the frames that it passed, and with them the
    connections that are to be closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cause: BaseException | None = None

    @property
    def cause(self) -> BaseException | None:
        """The first failure, or None while alive."""
        return self._cause

    def fail(self, cause: BaseException) -> bool:
        """Latch dead with ``cause`` and return True, unless an earlier cause stands."""
        with self._lock:
            first = self._cause is None
            if first:
                self._cause = type(cause)(*cause.args)
        return first

    def holds(self, error: BaseException) -> bool:
        """Whether an error is the first failure."""
        cause = self._cause
        return cause is not None and type(error) is type(cause) and error.args == cause.args

    def check(self) -> None:
        """Raise the first cause again, as a new error of its type, if there is one."""
        cause = self._cause
        if cause is not None:
            raise type(cause)(*cause.args) from cause
