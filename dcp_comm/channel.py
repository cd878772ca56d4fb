"""Channel: the guarded way of a checked call to the backend and the control plane.

Here live the rules that hold for every call: one thread at a time, the process that made it, dead
stays dead, every wait bounded, everything counted.
"""

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import torch

from dcp_comm import agreement
from dcp_comm.backend import Backend
from dcp_comm.contract import Call, Place
from dcp_comm.control import Control
from dcp_comm.deadline import Deadline
from dcp_comm.errors import (
    CommArgumentError,
    CommClosed,
    CommTimeout,
    CommUsageError,
    DcpCommError,
)
from dcp_comm.latch import Latch
from dcp_comm.ledger import Ledger
from dcp_comm.settings import Settings
from dcp_comm.streams import Streams
from dcp_comm.tracing import span

_logger = logging.getLogger("dcp_comm")

MERGE_LEVEL, EVERY_CALL_LEVEL = 1, 2


class Channel:
    """One communicator's backend and control plane, behind the guards.

    Args:
        backend: Moves the bytes.
        control: Carries fingerprints and agreements.
        name: The communicator's name, for messages.
        timeout: Seconds that one call may wait for peers.
        settings: What the environment asks for.
    """

    def __init__(
        self, backend: Backend, control: Control, name: str, timeout: float, settings: Settings
    ) -> None:
        self.backend, self.control, self.timeout = backend, control, timeout
        self.place = Place(backend.rank, backend.size, backend.device, backend.name)
        self.ledger = Ledger(backend.size)
        self.latch = Latch()
        self._check_level = settings.check_level(backend.device.type)
        self._name, self.ranges = name, settings.ranges
        self._lock, self.busy, self._pid = threading.RLock(), "", os.getpid()
        self._sequence, self._closed = 0, False
        on_gpu = backend.device.type == "cuda"
        self.streams = Streams(backend.device) if on_gpu else None

    def turn(self, what: str) -> "_Turn":
        """Hold the communicator for one thread; refuse what cannot be answered any more.

        Raises:
            CommUsageError: Another thread is inside, a signal handler re-enters, or the process is
                a fork of the one that made the communicator.
            DcpCommError: The first cause, if the communicator is dead.
        """
        return _Turn(self, what)

    def issue(self, calls: Sequence[Call], stream: torch.cuda.Stream | None) -> None:
        """Issue checked calls as one launch, and count them."""
        if self.checks(EVERY_CALL_LEVEL):
            shared = [str(call) for call in calls if call.collective]
            if shared:
                self.compare("; ".join(shared), len(shared))
        moving = [call for call in calls if not call.empty]
        if moving:
            with self._waiting(_names(moving)) as deadline:
                if self.streams is not None and stream is not None:
                    self.streams.enter(stream)
                self.backend.issue(moving, stream, deadline)
                # Not every rank takes part in sends and receives, and all must count alike.
                self._sequence += moving[0].collective or any(call.collective for call in moving)
        for call in calls:
            self.ledger.count(call)

    def checks(self, level: int) -> bool:
        """Whether calls of this level are compared now; never while a graph is being captured."""
        if self._check_level < level:
            return False
        return self.place.device.type != "cuda" or not torch.cuda.is_current_stream_capturing()

    def compare(self, text: str, count: int) -> None:
        """Have every rank confirm that it is making the same call.

        Raises:
            CommMismatch: On every rank, with a line a rank.
        """
        with self._waiting(text) as deadline:
            agreement.compare_fingerprints(self._exchange(self._frame(text, count), deadline))

    def consult(self, text: str, record: bytes) -> list[bytes]:
        """All-gather one record a rank, after all confirmed that they are doing the same."""
        self.compare(text, len(record))
        with self._waiting(text) as deadline:
            return self._exchange(record, deadline)

    def settle(self, what: str) -> None:
        """Have the host wait for what is on the current CUDA stream; nothing to do on CPU.

        Raises:
            CommTimeout: It was not done in time: a peer did not make its call.
        """
        if self.place.device.type != "cuda":
            return
        with self._waiting(what) as deadline:
            done = torch.cuda.current_stream(self.place.device).record_event()
            if not deadline.poll(done.query):
                raise CommTimeout(f"{what}: not finished on the GPU within {self.timeout:g} s")
            self.backend.check()

    def check(self) -> None:
        """Raise the latched cause, or what the backend found out meanwhile."""
        self.latch.check()
        with self.failing("check"):
            self.backend.check()

    def kill(self, cause: BaseException) -> None:
        """Latch dead and let go of peers, so that they do not wait for this rank."""
        self.latch.fail(cause)
        try:
            self.backend.abort()
        except Exception as error:
            _logger.warning("abort of %r left something behind: %s", self._name, error)
        finally:
            self.control.close()

    def close(self, timeout: float) -> None:
        """Latch closed and release everything, within ``timeout`` seconds; once is enough."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self.latch.fail(CommClosed(f"communicator {self._name!r} was closed ({self.place})"))
        try:
            self.backend.close(Deadline(timeout))
        except Exception as error:
            _logger.warning("close of %r left something behind: %s", self._name, error)
        finally:
            self.control.close()

    def _frame(self, text: str, count: int) -> bytes:
        self._sequence += 1
        return agreement.fingerprint(self._sequence, text, count)

    def _exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        records = self.control.exchange(record, deadline)
        self.ledger.count_control(len(record))
        return records

    def _waiting(self, what: str) -> "_Waiting":
        return _Waiting(self, what)

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Latch on anything that leaves the ranks in doubt about one another."""
        try:
            yield
        except BaseException as error:
            self.react(what, error)
            raise

    def react(self, what: str, error: BaseException) -> None:
        """Latch dead unless the call was refused before anything was sent; word what is ours.

        Raises:
            DcpCommError: The first cause, or this error with the rank and the communicator's name.
        """
        if isinstance(error, (CommArgumentError, CommUsageError)) or error is self.latch.cause:
            return
        if isinstance(error, DcpCommError):
            self.latch.check()
            worded = type(error)(f"{error} ({self.place}, communicator {self._name!r})")
            self.kill(worded)
            raise worded from error
        self.kill(CommClosed(f"{what}: ended by {error!r} ({self.place})"))

    def enter(self, what: str) -> None:
        """The first half of `turn`."""
        if os.getpid() != self._pid:
            raise CommUsageError(
                f"{what}: used in a forked child ({self.place}). Make another one there"
            )
        self.latch.check()
        if not self._lock.acquire(blocking=False):
            raise CommUsageError(
                f"{what}: another thread is inside this communicator ({self.place}). Take turns"
            )
        if self.busy:
            self._lock.release()
            raise CommUsageError(f"{what}: called from within {self.busy} ({self.place})")

    def leave(self) -> None:
        """The second half of `turn`."""
        self._lock.release()


def _names(calls: Sequence[Call]) -> str:
    """The operations of a launch, in words."""
    if len(calls) == 1:
        return calls[0].op
    return " + ".join(dict.fromkeys(call.op for call in calls))


class _Turn:
    """What `Channel.turn` returns; a class, because a generator costs more than the rest of it."""

    __slots__ = ("_channel", "_what")

    def __init__(self, channel: Channel, what: str) -> None:
        self._channel, self._what = channel, what

    def __enter__(self) -> None:
        self._channel.enter(self._what)

    def __exit__(self, *_: object) -> None:
        self._channel.leave()


class _Waiting:
    """Around whatever may wait for peers: a deadline, a profiler range, a latch for failures."""

    __slots__ = ("_channel", "_span", "_what")

    def __init__(self, channel: Channel, what: str) -> None:
        self._channel, self._what = channel, what

    def __enter__(self) -> Deadline:
        channel = self._channel
        channel.busy = self._what
        if channel.ranges:
            cuda = channel.place.device.type == "cuda"
            self._span = span(self._what, cuda=cuda)
            self._span.__enter__()
        return Deadline(channel.timeout, channel.latch)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        channel = self._channel
        channel.busy = ""
        if channel.ranges:
            self._span.__exit__(None, None, None)
        if error is not None:
            channel.react(self._what, error)
