"""How processes end beside threads that are inside C++: what is waited for, what never destroyed.

A thread that comes back from C++ while the interpreter ends is unwound through destructors, which
aborts the process; so the end waits a moment for daemon threads. Objects whose destructors wait for
threads of their own are never destroyed where these are too late or, in a forked child, not there.
"""

import atexit
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TypeVar

_LAST_SECONDS = 1.5

T = TypeVar("T")

_daemons: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_kept: "weakref.WeakSet[object]" = weakref.WeakSet()
_begun = threading.Event()


def start_daemon(body: Callable[[], object], what: str) -> None:
    """Run in a daemon thread; when the process ends, it is given a moment to end first."""
    thread = threading.Thread(target=body, name=f"dcp_comm {what}", daemon=True)
    thread.start()  # one that cannot is not waited for
    _daemons.add(thread)


def has_begun() -> bool:
    """Whether the process is about to end, and a daemon thread had better do so too."""
    return _begun.is_set()


def never_destroy(found: object) -> None:
    """Take a reference that nobody gives back."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


def never_destroyed_in_children(found: T) -> T:
    """Return an object that owns threads, and see to it that no forked child destroys it."""
    _kept.add(found)
    return found


@atexit.register
def _wait_for_daemons() -> None:
    """Also for those that have done their work and are letting go of what it took."""
    _begun.set()
    end = time.monotonic() + _LAST_SECONDS
    for thread in list(_daemons):
        thread.join(max(0.0, end - time.monotonic()))


def _keep() -> None:
    for found in list(_kept):
        never_destroy(found)


os.register_at_fork(after_in_child=_keep)
