"""Names by which compiled code finds what it calls: a graph holds strings, and no objects."""

import threading
from typing import TypeVar

from dcp_comm.errors import CommArgumentError, CommClosed, refusal

T = TypeVar("T")

_named: dict[str, tuple[object, object]] = {}
_lock = threading.Lock()


def give(thing: object, wish: str, owner: object) -> str:
    """Return the name under which ``thing`` is found until `forget` of its owner.

    It is the wish, with a number behind it while another bears that name. A name is known in this
    process alone.
    """
    with _lock:
        name, number = wish, 1
        while name in _named:
            number += 1
            name = f"{wish}~{number}"
        _named[name] = thing, owner
        return name


def find(operation: str, name: str, kind: type[T]) -> T:
    """Return what bears a name.

    Raises:
        CommClosed: Nothing does, or not any more.
        CommArgumentError: It is something else.
    """
    thing, _ = _named.get(name, (None, None))
    if thing is None:
        raise CommClosed(
            f"{operation}: nothing is registered as {name!r}: it was never, or its communicator "
            "was closed. Register with dcp_comm.compiled.register before the call"
        )
    if not isinstance(thing, kind):
        got, need = f"{name!r}, a {type(thing).__name__}", f"the name of a {kind.__name__}"
        raise CommArgumentError(refusal(operation, "name", got, need))
    return thing


def forget(owner: object) -> None:
    """Take all names away that were given for ``owner``."""
    with _lock:
        for name in [name for name, (_, whose) in _named.items() if whose is owner]:
            del _named[name]
