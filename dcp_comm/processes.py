"""Whether the processes of this host that hold a communicator's other ranks still live.

Ranks on one host reach one another through memory: when one dies nothing breaks, and who waits for
it waits for ever. Linux tells of the end of any process through a file descriptor.
"""

import contextlib
import os
import select
from collections.abc import Sequence
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


def own_process() -> str:
    """Name this process: its running system, its namespace of process ids, its id there."""
    try:
        system = f"{_BOOT_ID.read_text().strip()}/{_NAMESPACE.readlink()}"
    except OSError:
        return ""
    return f"{system}/{os.getpid()}"


def ended_ranks(names: Sequence[str], rank: int) -> set[int]:
    """Return the other ranks whose processes have ended, as far as they ran on this system.

    Args:
        names: As `Processes` takes them; empty if they are not known.
        rank: This rank.
    """
    here = own_process().rpartition("/")[0]
    ended = set()
    for other, name in enumerate(names):
        system, _, number = name.rpartition("/")
        if other != rank and system and system == here and number.isdecimal():
            with contextlib.suppress(AttributeError, OverflowError):
                if _has_ended(int(number)):
                    ended.add(other)
    return ended


class Processes:
    """The processes of a communicator's ranks, as far as they run on this system.

    Args:
        names: What `own_process` gave each rank, in rank order; not trusted: a wrong one can only
            point at another process.
        rank: This rank.
    """

    def __init__(self, names: Sequence[str], rank: int) -> None:
        here = own_process().rpartition("/")[0]
        self._ranks: dict[int, int] = {}
        self._poll = select.poll()
        for other, name in enumerate(names):
            system, _, number = name.rpartition("/")
            if other != rank and system and system == here and number.isdecimal():
                self._observe(other, int(number))

    def ended(self) -> int | None:
        """Return a rank whose process has ended, if there is one; never waits."""
        for descriptor, _ in self._poll.poll(0):
            return self._ranks[descriptor]
        return None

    def close(self) -> None:
        """Look no more."""
        for descriptor in self._ranks:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        self._ranks.clear()

    def _observe(self, rank: int, process: int) -> None:
        """Where the kernel or a sandbox does not offer it, deaths go unnoticed."""
        with contextlib.suppress(OSError, AttributeError, OverflowError):
            descriptor = os.pidfd_open(process)
            self._ranks[descriptor] = rank
            self._poll.register(descriptor, select.POLLIN)


def _has_ended(process: int) -> bool:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(descriptor)
