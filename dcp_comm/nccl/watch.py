"""Watch: a thread that turns what NCCL waits for without end into an error within the timeout.

NCCL waits on the host while it connects, and on the GPU while a peer is missing.
"""

import atexit
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock

import torch

from dcp_comm import exits
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.nccl.codes import IN_PROGRESS, SUCCESS, error
from dcp_comm.nccl.handle import Handle
from dcp_comm.nccl.life import LAST_LOOK_SECONDS, prepare_thread
from dcp_comm.processes import Processes
from dcp_comm.roll import PASSED, WAITS, Roll
from dcp_comm.streams import captures

_logger = logging.getLogger("dcp_comm")

_PERIOD_SECONDS = 0.1

Query = Callable[[], bool]


class Watch:
    """A daemon thread that notices what NCCL does not report to a waiting host.

    It looks at NCCL's asynchronous error, at the processes of the other ranks, at how long a call
    has held the host, and at how long one has run on the GPU. For that it asks for one call now and
    then to be marked by an event before and one behind; its time runs from when the first has
    passed, so that what was on the stream before it does not count. Calls that came too fast to be
    marked are covered by one event behind the last of them, from when that was recorded. Nothing
    that is being captured is touched, and replays of graphs are not seen.

    Args:
        handle: What to look at, until `stop`.
        processes: Of the other ranks; closed when the thread ends.
        device: The handle's GPU.
        timeout: Seconds that one call may take, on the host, or on the GPU from its start on.
        react: Called in the thread, once, after a failure was noted.
        roll: Where ranks leave word, so that who is missing can be named; None for nowhere.
        where: Whose watch this is, for the log.
    """

    def __init__(
        self,
        handle: Handle,
        processes: Processes,
        device: torch.device,
        timeout: float,
        react: Callable[[], None],
        roll: Roll | None = None,
        where: str = "",
    ) -> None:
        self.failure: DcpCommError | None = None
        self._handle, self._processes, self._device = handle, processes, device
        self._timeout, self._react, self._roll, self._where = timeout, react, roll, where
        self._entered: float | None = None
        self._stream: torch.cuda.Stream | None = None
        self._begun: Query | None = None
        self._what, self._number = "", 0
        self._calls = self._marked_calls = 0
        self._mark: Mark | None = None
        self._wanted, self._overdue = True, False
        self._marking = Lock()
        self._stopped, self._quiet, self._process = Event(), Event(), os.getpid()
        atexit.register(self.stop)
        exits.start_daemon(self._run, "nccl watch")

    def enter(self, stream: torch.cuda.Stream | None, what: str, *, counts: bool) -> None:
        """Note that the host goes into NCCL.

        Args:
            stream: Where it will leave work.
            what: The call, in words.
            counts: Whether every rank makes it.
        """
        self._entered, self._what = time.monotonic(), what
        self._number += counts
        self._begun = _recorded(stream) if self._wanted else None

    def leave(self, stream: torch.cuda.Stream | None) -> None:
        """Note that the host is back, and where it left work."""
        self._entered, self._stream = None, stream
        self._calls += 1
        begun, self._begun = self._begun, None
        ended = None if begun is None else _recorded(stream)
        if ended is not None:
            with self._marking:
                self._wanted, self._marked_calls = False, self._calls
                self._mark = Mark(begun, ended, self._number, self._what)

    def is_idle(self) -> Query:
        """Return what tells whether the host has left NCCL and the last call's stream has run."""
        passed = _recorded(self._stream)
        return lambda: self._entered is None and (passed is None or passed())

    def check(self) -> None:
        """Raise what was found, if anything was."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def stop(self) -> None:
        """Look no more.

        Also called when the interpreter ends, so that the thread is not caught inside torch then.
        In a forked child, which has no such thread, there is nothing to stop.
        """
        if os.getpid() != self._process:
            return
        self._stopped.set()
        atexit.unregister(self.stop)
        self.is_quiet(LAST_LOOK_SECONDS)

    def is_quiet(self, seconds: float) -> bool:
        """Whether the thread has ended, within so many seconds: the handle is not in use here."""
        return self._quiet.wait(seconds)

    def _run(self) -> None:
        try:
            prepare_thread(self._device)
            while not self._stopped.wait(_PERIOD_SECONDS):
                self.failure = self._look()
                if self.failure is not None:
                    _logger.error("%s (%s)", self.failure, self._where)
                    self._react()
                    return
        finally:
            self._processes.close()
            self._quiet.set()

    def _look(self) -> DcpCommError | None:
        try:
            return self._find()
        except DcpCommError as problem:
            return problem
        except Exception as problem:
            return DcpCommError(f"the watch of NCCL failed: {problem!r}")

    def _find(self) -> DcpCommError | None:
        code = self._handle.async_error()
        if code not in (SUCCESS, IN_PROGRESS):
            return error(code, "NCCL noticed", self._handle.explain(code))
        ended = self._processes.ended()
        if ended is not None:
            return CommPeerLost(f"the process of rank {ended} has ended")
        now, entered = time.monotonic(), self._entered
        if entered is not None and now - entered > self._timeout:
            return self._late(self._what, self._number, "on the host: peers did not connect")
        try:
            return self._late_on_gpu(now)
        except RuntimeError as problem:
            if isinstance(problem, DcpCommError):
                raise
            return DcpCommError(f"the GPU reports: {str(problem).splitlines()[0]}")

    def _late_on_gpu(self, now: float) -> DcpCommError | None:
        mark = self._mark or self._catch_up(now)
        if mark is None:
            return None
        if mark.ended():
            with self._marking:
                if self._mark is mark:
                    self._mark, self._wanted = None, True
            self._say(PASSED, mark, mark.said)
        elif mark.has_begun(now):
            waited = now - mark.since
            if waited > self._timeout:
                what = "on the GPU: a peer did not come, or its stream is long"
                return self._late(mark.what, mark.number, what)
            self._say(WAITS, mark, not mark.said and waited > Deadline(self._timeout).patience)
        return None

    def _catch_up(self, now: float) -> "Mark | None":
        """Mark what is behind calls that went unmarked, unless one is marked within a period."""
        if self._calls == self._marked_calls:
            return None
        self._overdue = not self._overdue
        if self._overdue:
            return None
        calls, number, what = self._calls, self._number, self._what
        ended = _recorded(self._stream)
        with self._marking:
            if self._mark is None:  # else a call was marked meanwhile
                self._marked_calls = calls
                if ended is not None:
                    self._wanted = False
                    self._mark = Mark(None, ended, number, what, since=now)
            return self._mark

    def _say(self, state: str, mark: "Mark", wanted: bool) -> None:
        """Leave word of where this rank is, if there is reason to."""
        if wanted and self._roll is not None:
            mark.said = True
            self._roll.say(state, mark.number, mark.what)
            if state == WAITS:
                self._roll.unless_apart(mark.number, mark.what)

    def _late(self, what: str, number: int, where: str) -> CommTimeout:
        text = f"{what}: call {number} was not finished within {self._timeout:g} s {where}"
        if self._roll is None:
            return CommTimeout(text)
        patience = Deadline(self._timeout).patience
        return CommTimeout(f"{text}; {self._roll.missing(number, patience)}")


@dataclass(eq=False)
class Mark:
    """A call on the GPU, between two events; or the end of several, behind one."""

    begun: Query | None
    ended: Query
    number: int
    what: str
    since: float = 0.0
    said: bool = False

    def has_begun(self, now: float) -> bool:
        """Whether it runs, from when on is kept in ``since``."""
        if self.begun is not None and self.begun():
            self.begun, self.since = None, now
        return self.begun is None


def _recorded(stream: torch.cuda.Stream | None) -> Query | None:
    """Mark what is on a stream, and return what tells whether it has passed.

    None where there is nothing, or a graph is being captured.
    Looks before and after: the mark of a capture that began in between must not be queried.
    """
    if stream is None or captures(stream):
        return None
    passed: Query = stream.record_event().query
    return None if captures(stream) else passed
