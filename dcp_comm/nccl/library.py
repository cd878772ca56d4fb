"""Which libnccl: where it is looked for, which paths are trusted, and that there is only one.

1. a path given explicitly, then ``DCP_COMM_NCCL_LIBRARY``: absolute, a regular file, owned by root
   or this user, writable by nobody else;
2. the libnccl that is in the process already, which is torch's;
3. an installed wheel, by its metadata, of torch's CUDA version first;
4. what cuda.pathfinder finds, where that is installed;
5. the system's, by its bare name.

The path of a library is code: nothing else is ever loaded.
"""

import ctypes
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from dcp_comm.errors import BackendUnavailable, CommUsageError, refusal
from dcp_comm.settings import Settings

VARIABLE = "DCP_COMM_NCCL_LIBRARY"
_SONAME = "libnccl.so.2"
_MAPPED = re.compile(r"\S+ \S+ \S+ (\S+) (\d+) +(/.*/libnccl\.so[.\d]*)(?: \(deleted\))?$")
_MAPS = Path("/proc/self/maps")


@dataclass(frozen=True)
class Found:
    """One libnccl and where it was found.

    Attributes:
        path: What to hand to the loader; absolute but for the system's.
        origin: ``argument``, the variable's name, ``already loaded``, a wheel's name and version,
            ``cuda.pathfinder`` or ``system``.
    """

    path: str
    origin: str

    def __str__(self) -> str:
        return f"{self.path} ({self.origin})"


def find(explicit: str | None = None) -> Found:
    """Return the libnccl to use.

    Args:
        explicit: A path that overrides everything.

    Raises:
        CommUsageError: A given path is not to be trusted.
    """
    return next(_candidates(explicit))


def loaded() -> tuple[str, ...]:
    """Return the paths of the different libnccl that are mapped into this process."""
    lines = _MAPS.read_text(errors="replace").splitlines() if _MAPS.exists() else []
    matches = [match for line in lines if (match := _MAPPED.match(line))]
    files = {match.group(1, 2): match.group(3) for match in matches}
    return tuple(files.values())


def open_library(found: Found) -> ctypes.CDLL:
    """Load it; the other libnccl of a process that has two is refused.

    Raises:
        BackendUnavailable: The loader refuses it.
        CommUsageError: The process now holds two different libnccl.
    """
    try:
        library = ctypes.CDLL(found.path)
    except OSError as error:
        raise BackendUnavailable(f"libnccl: {found}: {error}. {_remedy()}") from error
    unless_one(loaded())
    return library


def unless_one(paths: tuple[str, ...]) -> None:
    """Refuse a process with several libnccl: buffers, ids and communicators of one crash another.

    Raises:
        CommUsageError: Names them; ``DCP_COMM_TWO_NCCL=1`` lifts the rule.
    """
    if len(paths) > 1 and not Settings.from_environment().two_nccl:
        raise CommUsageError(
            refusal(
                "libnccl",
                "process",
                f"{len(paths)} different libraries: {', '.join(paths)}",
                "one",
                remedy=f"Unset {VARIABLE} to use torch's, or set DCP_COMM_TWO_NCCL=1 if no "
                "communicator of one is ever handed to the other",
            )
        )


def trusted(path: str, argument: str) -> str:
    """Return the file behind a given path if it may be loaded as code.

    Raises:
        CommUsageError: It is relative, no regular file, of another owner, or writable by others.
    """
    if not os.path.isabs(path):
        raise _untrusted(argument, repr(path), "an absolute path")
    try:
        file, status = os.path.realpath(path), os.stat(path)
    except OSError as error:
        raise _untrusted(argument, f"{path}: {error.strerror}", "an existing file") from error
    if not stat.S_ISREG(status.st_mode):
        raise _untrusted(argument, f"{path}, which is no regular file", "a shared library")
    if status.st_uid not in (0, os.geteuid()):
        need = "a file owned by root or by this user"
        raise _untrusted(argument, f"{path}, owned by user id {status.st_uid}", need)
    others = stat.S_IWOTH | (0 if status.st_gid in (0, os.getegid()) else stat.S_IWGRP)
    if status.st_mode & others:
        raise _untrusted(argument, f"{path}, which others may write", "a file that they may not")
    return file


def _untrusted(argument: str, got: str, need: str) -> CommUsageError:
    remedy = "A library is code: name one that nobody else can change"
    return CommUsageError(refusal("libnccl", argument, got, need, remedy=remedy))


def _candidates(explicit: str | None) -> Iterator[Found]:
    """Best first; lazy, because asking cuda.pathfinder loads what it finds."""
    asked = Settings.from_environment().nccl_library
    if explicit:
        yield Found(trusted(explicit, "library"), "argument")
    if asked:
        yield Found(trusted(asked, VARIABLE), VARIABLE)
    for path in loaded():
        yield Found(path, "already loaded")
    yield from _wheels()
    yield from _pathfinder()
    yield Found(_SONAME, "system")


def _wheels() -> Iterator[Found]:
    """NVIDIA's wheels share one folder: the last one installed wins, whatever its name."""
    cuda = (torch.version.cuda or "").partition(".")[0]
    for name in sorted(("nvidia-nccl-cu12", "nvidia-nccl-cu13"), key=lambda name: cuda not in name):
        try:
            wheel = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        path = Path(str(wheel.locate_file(f"nvidia/nccl/lib/{_SONAME}")))
        if path.is_file():
            yield Found(str(path), f"{name} {wheel.version}")


def _pathfinder() -> Iterator[Found]:
    try:
        from cuda import pathfinder

        load: Callable[[str], object] = pathfinder.load_nvidia_dynamic_lib
        path = getattr(load("nccl"), "abs_path", None)
    except (ImportError, RuntimeError):
        return
    if path:
        yield Found(str(path), "cuda.pathfinder")


def _remedy() -> str:
    return f"Install nvidia-nccl-cu12 or -cu13 as torch's CUDA needs, or set {VARIABLE}"
