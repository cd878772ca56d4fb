"""Channel: the guarded way of a checked call to the backend and the control plane.

Here live the rules that hold for every call: one thread at a time, the process that made it, dead
stays dead, every wait bounded, everything counted.
"""

import logging
import os
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from dcp_comm import agreement
from dcp_comm.backend import Backend
from dcp_comm.contract import Call, Place
from dcp_comm.control import Control
from dcp_comm.deadline import Deadline
from dcp_comm.errors import (
    CommClosed,
    CommTimeout,
    CommUsageError,
    DcpCommError,
)
from dcp_comm.guards import Turn, Waiting, is_refusal
from dcp_comm.header import Headers
from dcp_comm.latch import Latch
from dcp_comm.ledger import Ledger
from dcp_comm.settings import Settings
from dcp_comm.streams import Streams
from dcp_comm.witness import Witness, in_purpose

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
        self._name, self.ranges, self.debug = name, settings.ranges, settings.debug
        self.witness = Witness(name, self.place, timeout, control.roll, settings.trace_dir)
        self._lock, self.busy, self._pid = threading.RLock(), "", os.getpid()
        self._unclosed = threading.Lock()
        self._on_gpu = backend.device.type == "cuda"
        self.streams = Streams(backend.device) if self._on_gpu else None
        heads = self._on_gpu and backend.size > 1 and self._check_level >= MERGE_LEVEL
        self._headers = Headers(self.place, self._send_header) if heads else None

    def turn(self, what: str) -> Turn:
        """Hold the communicator for one thread; refuse what cannot be answered any more.

        Raises:
            CommUsageError: Another thread is inside, a signal handler re-enters, or the process is
                a fork of the one that made the communicator.
            DcpCommError: The first cause, if the communicator is dead.
        """
        return Turn(self, what)

    def issue(self, calls: Sequence[Call], stream: torch.cuda.Stream | None) -> None:
        """Issue checked calls as one launch, and count them."""
        if self.checks(EVERY_CALL_LEVEL):
            shared = [str(call) for call in calls if call.collective]
            if shared:
                self.compare("; ".join(shared), len(shared))
        moving = [call for call in calls if not call.empty]
        if moving:
            # Not every rank takes part in sends and receives, and all must count alike.
            counts = moving[0].collective or any(call.collective for call in moving)
            self.witness.step += counts
            self._launch(moving, stream, counts)
        for call in calls:
            self.ledger.count(call)

    def announce(self, purpose: str, fields: Mapping[str, object]) -> None:
        """Have every rank confirm that it is about to do the same, as far as that is asked for.

        On CUDA a header says so on the current stream, and `check` tells what came of it.

        Raises:
            CommMismatch: On every rank, with a line a rank.
        """
        compares = self.checks(MERGE_LEVEL)
        if not compares and self._headers is None:
            return
        text = " ".join([purpose, *(f"{name}={value}" for name, value in fields.items())])
        number = next((each for each in fields.values() if isinstance(each, int)), 0)
        if self._headers is not None:
            self._headers.check()
            words = f"{text} captured={self._capturing()}"
            self._headers.exchange(self.witness.number, words, number)
        if compares:
            self.compare(text, number)

    def checks(self, level: int) -> bool:
        """Whether calls of this level are compared over the control plane now.

        On CUDA that is so at the highest level alone, and never while a graph is being captured.
        """
        if not self._on_gpu:
            return self._check_level >= level
        return self._check_level >= EVERY_CALL_LEVEL and not self._capturing()

    def compare(self, text: str, count: int) -> None:
        """Have every rank confirm that it is making the same call.

        Raises:
            CommMismatch: On every rank, with a line a rank.
        """
        witness = self.witness
        with self._waiting(text) as deadline:
            words = in_purpose(text, witness.purpose, witness.step)
            mine = agreement.fingerprint(witness.number, words, count, epoch=self._name)
            agreement.compare_fingerprints(self._exchange(mine, deadline))

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
        with self._waiting(what, counts=False) as deadline:
            done = torch.cuda.current_stream(self.place.device).record_event()
            if not deadline.poll(done.query):
                raise CommTimeout(f"{what}: not finished on the GPU within {self.timeout:g} s")
            self.backend.check()

    def check(self) -> None:
        """Raise the latched cause, or what the backend found out meanwhile."""
        self.latch.check()
        with self.failing("check"):
            self.backend.check()
            if self._headers is not None:
                self._headers.check()

    def kill(self, cause: BaseException) -> None:
        """Latch dead and let go of peers, so that they do not wait for this rank."""
        if self.latch.fail(cause):
            self.witness.tell(cause)
        try:
            self.backend.abort()
        except Exception as error:
            _logger.warning("abort of %r left something behind: %s", self._name, error)
        finally:
            self.control.close()

    def close(self, timeout: float) -> None:
        """Latch closed and release everything, within ``timeout`` seconds; once is enough."""
        if os.getpid() != self._pid or not self._unclosed.acquire(blocking=False):
            return
        self.latch.fail(CommClosed(f"communicator {self._name!r} was closed ({self.place})"))
        try:
            self.backend.close(Deadline(timeout))
        except Exception as error:
            _logger.warning("close of %r left something behind: %s", self._name, error)
        finally:
            self.control.close()

    def _capturing(self) -> bool:
        """Whether a graph is being captured on the current stream."""
        return self.streams is not None and torch.cuda.is_current_stream_capturing()

    def _launch(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, counts: bool
    ) -> None:
        with self._waiting(_names(calls), calls, counts=counts) as deadline:
            if self.streams is not None and stream is not None:
                self.streams.enter(stream)
            self.backend.issue(calls, stream, deadline)

    def _send_header(self, call: Call) -> None:
        stream = None if self.streams is None else self.streams.current()
        self._launch([call], stream, counts=True)
        self.ledger.count_control(call.nbytes)

    def _exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        records = self.control.exchange(record, deadline)
        self.ledger.count_control(len(record))
        return records

    def _waiting(self, what: str, calls: Sequence[Call] = (), *, counts: bool = True) -> Waiting:
        return Waiting(self, what, calls, counts)

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Latch on anything that leaves the ranks in doubt about one another."""
        try:
            yield
        except BaseException as error:
            self.react(what, error)
            raise

    def react(self, what: str, error: BaseException, account: str = "") -> None:
        """Latch dead unless the call was refused before anything was sent; word what is ours.

        Raises:
            DcpCommError: The first cause, or this error with the rank and the communicator's name.
        """
        if is_refusal(error) or self.latch.holds(error):
            return
        # Its frames hold the group whose connections the other ranks wait on.
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, DcpCommError):
            self.latch.check()
            told = f" ({account})" if account else ""
            worded = type(error)(f"{error}{told} ({self.place}, communicator {self._name!r})")
            self.kill(worded)
            try:
                raise worded from error
            finally:
                del worded  # or its traceback would hold it, and with it the connections
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
