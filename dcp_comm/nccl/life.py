"""How an NCCL communicator begins and ends: in daemon threads, for NCCL may block in both.

It begins when all ranks have come. Ending it can block for as long as a captured CUDA graph or a
stuck kernel holds it; an `Ending` keeps it alive until then.
"""

import contextlib
import ctypes
from collections.abc import Callable
from functools import partial
from threading import Event, Lock
from typing import Generic, TypeVar

import torch

from dcp_comm import exits
from dcp_comm.deadline import Deadline
from dcp_comm.nccl.handle import Handle
from dcp_comm.streams import driver

LAST_LOOK_SECONDS = 1.0
_RELAXED = 2

H = TypeVar("H", bound=Handle)


class Ending:
    """The end of a handle, once: destroyed when its work is done, or aborted if that takes long.

    Args:
        handle: Kept alive by the threads until the library has let go of it.
        device: Its GPU.
        is_quiet: Whether nobody else uses the handle, within so many seconds; one that does not
            become quiet is aborted, which NCCL allows beside other calls.
    """

    def __init__(
        self, handle: Handle, device: torch.device, is_quiet: Callable[[float], bool]
    ) -> None:
        self._handle, self._device, self._is_quiet = handle, device, is_quiet
        self._way, self._ended = "", Event()

    def begin(self, is_idle: Callable[[], bool], grace: float) -> None:
        """Start, and return at once.

        Args:
            is_idle: Whether the communicator has nothing left to do.
            grace: Seconds that it is given for that before it is aborted.
        """
        # A process that ends while NCCL is still letting go is aborted by NCCL's own threads, too.
        exits.start_daemon(partial(self._run, is_idle, grace), "nccl ending")

    def wait(self, deadline: Deadline) -> bool:
        """Wait until the library has let go of the communicator; False at the deadline."""
        return deadline.poll(self._ended.is_set)

    @property
    def aborted(self) -> bool:
        """Whether work had to be aborted."""
        return self._way == "abort"

    def _run(self, is_idle: Callable[[], bool], grace: float) -> None:
        prepare_thread(self._device)
        idle = _is_soon(is_idle, grace)
        quiet = self._is_quiet(LAST_LOOK_SECONDS)
        self._way = "destroy" if idle and quiet else "abort"
        end = self._handle.destroy if self._way == "destroy" else self._handle.abort
        try:
            end()
        finally:
            self._ended.set()


def _is_soon(is_idle: Callable[[], bool], grace: float) -> bool:
    try:
        return grace > 0 and Deadline(grace).poll(is_idle)
    except RuntimeError:
        return False


def run_on_device(make: Callable[[], H], device: torch.device, deadline: Deadline, what: str) -> H:
    """Make a communicator in a daemon thread; one that comes too late is aborted.

    Raises:
        CommTimeout: It was not made by the deadline.
    """
    handover: Handover[H] = Handover()

    def body() -> H:
        prepare_thread(device)
        handle = make()
        if not handover.offer(handle):
            handle.abort()
        return handle

    try:
        return deadline.run(body, what)
    except BaseException:
        late = handover.withdraw()
        if late is not None:
            exits.start_daemon(late.abort, "nccl late")
        raise


class Handover(Generic[H]):
    """One communicator on its way between two threads: exactly one of them has to end it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._handle: H | None = None
        self._withdrawn = False

    def offer(self, handle: H) -> bool:
        """Leave it to the other thread; False if that waits no more."""
        with self._lock:
            self._handle = handle
            return not self._withdrawn

    def withdraw(self) -> H | None:
        """Wait no more; what was offered before is returned, to be ended."""
        with self._lock:
            self._withdrawn = True
            return self._handle


def prepare_thread(device: torch.device) -> None:
    """Make ``device`` current in a thread, and let it work beside another thread's capture."""
    torch.cuda.set_device(device)
    with contextlib.suppress(OSError):
        mode = ctypes.c_int(_RELAXED)
        driver().cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
