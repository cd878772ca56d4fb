"""Forked children: what is left alone there.

A child has copies of objects whose threads exist in the parent alone. Their C++ destructors wait
for these threads, or crash, when the child's interpreter ends; so there they are never destroyed.
"""

import ctypes
import os
import weakref
from typing import TypeVar

T = TypeVar("T")

_kept: "weakref.WeakSet[object]" = weakref.WeakSet()


def never_destroyed_in_children(found: T) -> T:
    """Return an object that owns threads, and see to it that no forked child destroys it."""
    _kept.add(found)
    return found


def _keep() -> None:
    """A reference that nobody gives back."""
    for found in list(_kept):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(found))


os.register_at_fork(after_in_child=_keep)
