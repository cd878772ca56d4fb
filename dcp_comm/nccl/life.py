"""How an NCCL communicator is watched while it lives, and how it ends.

NCCL waits for ever: on the host while it connects, on the GPU while a peer is missing. A `Watch`
turns that into an error within the timeout. Ending one can block for as long as a captured CUDA
graph or a stuck kernel holds it. An `Ending` does that in daemon threads that keep it alive.
"""

import atexit
import contextlib
import ctypes
import threading
import time
from collections.abc import Callable

import torch

from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.nccl.codes import IN_PROGRESS, SUCCESS, error
from dcp_comm.nccl.handle import Handle
from dcp_comm.processes import Processes
from dcp_comm.streams import captures, driver

_PERIOD_SECONDS = 0.1
_LAST_LOOK_SECONDS = 1.0
_EXIT_SECONDS = 1.5
_RELAXED = 2


class Watch:
    """A daemon thread that notices what NCCL does not report to a waiting host.

    It looks at NCCL's asynchronous error, at the processes of the other ranks, at how long a call
    has held the host, and at how long work has been on the GPU: it marks the stream of the last
    call with an event, and once that has passed and more calls were made, again. It touches nothing
    that is being captured.

    Args:
        handle: What to look at, until `stop`.
        processes: Of the other ranks; closed by `stop`.
        device: The handle's GPU.
        timeout: Seconds that one call may take, on the host, or on the GPU from its mark on.
        react: Called in the thread, once, after a failure was noted.
    """

    def __init__(
        self,
        handle: Handle,
        processes: Processes,
        device: torch.device,
        timeout: float,
        react: Callable[[], None],
    ) -> None:
        self.failure: DcpCommError | None = None
        self._handle, self._processes, self._device = handle, processes, device
        self._timeout, self._react = timeout, react
        self._entered: float | None = None
        self._stream: torch.cuda.Stream | None = None
        self._calls = self._marked_calls = 0
        self._mark: tuple[Callable[[], bool], float] | None = None
        self._stopped, self._looking = threading.Event(), threading.Lock()
        atexit.register(self.stop)
        threading.Thread(target=self._run, name="dcp_comm nccl watch", daemon=True).start()

    def enter(self) -> None:
        """Note that the host goes into NCCL."""
        self._entered = time.monotonic()

    def leave(self, stream: torch.cuda.Stream | None) -> None:
        """Note that the host is back, and where it left work."""
        self._entered, self._stream = None, stream
        self._calls += 1

    def is_idle(self) -> Callable[[], bool]:
        """Return what tells whether the host has left NCCL and the last call's stream has run."""
        passed = self._record()
        return lambda: self._entered is None and (passed is None or passed())

    def check(self) -> None:
        """Raise what was found, if anything was."""
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def stop(self) -> None:
        """Look no more; when this returns, the handle is not in use here.

        Also called when the interpreter ends, so that the thread is not caught inside torch then.
        """
        self._stopped.set()
        atexit.unregister(self.stop)
        if self._looking.acquire(timeout=_LAST_LOOK_SECONDS):
            self._processes.close()
            self._looking.release()

    def _run(self) -> None:
        prepare_thread(self._device)
        while not self._stopped.wait(_PERIOD_SECONDS):
            with self._looking:
                self.failure = None if self._stopped.is_set() else self._look()
            if self.failure is not None:
                self._react()
                return

    def _look(self) -> DcpCommError | None:
        try:
            return self._find()
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
            return self._late("on the host: peers did not connect")
        try:
            return self._late_on_gpu(now)
        except RuntimeError as problem:
            return DcpCommError(f"the GPU reports: {str(problem).splitlines()[0]}")

    def _late_on_gpu(self, now: float) -> DcpCommError | None:
        if self._mark is None and self._calls != self._marked_calls:
            self._marked_calls, passed = self._calls, self._record()
            self._mark = None if passed is None else (passed, now)
        if self._mark is None:
            return None
        passed, since = self._mark
        if passed():
            self._mark = None
        elif now - since > self._timeout:
            return self._late("on the GPU: a peer did not come, or its stream is long")
        return None

    def _record(self) -> Callable[[], bool] | None:
        """Mark what is on the stream of the last call, and return what tells whether it has passed.

        None where there is nothing, or a graph is being captured.
        Looks before and after: the mark of a capture that began in between must not be queried.
        """
        stream = self._stream
        if stream is None or captures(stream):
            return None
        passed = stream.record_event().query
        return None if captures(stream) else passed

    def _late(self, where: str) -> CommTimeout:
        return CommTimeout(f"a call was not finished within {self._timeout:g} s {where}")


class Ending:
    """The end of a handle, once: destroyed when its work is done, or aborted if that takes long.

    Args:
        handle: Kept alive by the threads until the library has let go of it.
        device: Its GPU.
    """

    def __init__(self, handle: Handle, device: torch.device) -> None:
        self._handle, self._device = handle, device
        self._way, self._ended = "", threading.Event()

    def begin(self, is_idle: Callable[[], bool], grace: float) -> None:
        """Start, and return at once.

        Args:
            is_idle: Whether the communicator has nothing left to do.
            grace: Seconds that it is given for that before it is aborted.
        """
        thread = threading.Thread(
            target=self._run, args=(is_idle, grace), name="dcp_comm nccl ending", daemon=True
        )
        # A process that ends while NCCL is still letting go is aborted by NCCL's own threads.
        atexit.register(self._ended.wait, _EXIT_SECONDS)
        thread.start()

    def wait(self, deadline: Deadline) -> bool:
        """Wait until the library has let go of the communicator; False at the deadline."""
        return deadline.poll(self._ended.is_set)

    @property
    def aborted(self) -> bool:
        """Whether work had to be aborted."""
        return self._way == "abort"

    def _run(self, is_idle: Callable[[], bool], grace: float) -> None:
        prepare_thread(self._device)
        self._way = "destroy" if _is_soon(is_idle, grace) else "abort"
        end = self._handle.destroy if self._way == "destroy" else self._handle.abort
        try:
            end()
        finally:
            self._ended.set()
            atexit.unregister(self._ended.wait)


def _is_soon(is_idle: Callable[[], bool], grace: float) -> bool:
    try:
        return grace > 0 and Deadline(grace).poll(is_idle)
    except RuntimeError:
        return False


def prepare_thread(device: torch.device) -> None:
    """Make ``device`` current in a thread, and let it work beside another thread's capture."""
    torch.cuda.set_device(device)
    with contextlib.suppress(OSError):
        mode = ctypes.c_int(_RELAXED)
        driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
