"""Every libnccl in sight, and its version, without loading one into this process.

Two copies of NCCL in one process share nothing but their names, so each is asked in a process of
its own.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from dcp_comm.errors import CommUsageError
from dcp_comm.nccl.codes import parse_version, version_text
from dcp_comm.nccl.library import VARIABLE, loaded, trusted

LOADED = "this process"

_ASK = """
import ctypes, sys
version = ctypes.c_int()
sys.exit(ctypes.CDLL(sys.argv[1]).ncclGetVersion(ctypes.byref(version)) or print(version.value))
"""


@dataclass(frozen=True)
class Wheel:
    """An installed wheel that brings a libnccl.

    Attributes:
        name: ``nvidia-nccl-cu12`` or ``nvidia-nccl-cu13``.
        version: What the wheel says it holds.
        path: Where it puts the library.
    """

    name: str
    version: str
    path: Path


@dataclass(frozen=True)
class Library:
    """One libnccl.

    Attributes:
        path: The file, links resolved.
        sources: Who finds it there: ``DCP_COMM_NCCL_LIBRARY``, `LOADED`, a wheel,
            ``LD_LIBRARY_PATH``, ``ldconfig``.
        version: What it says; empty if it cannot be asked.
        error: Why it cannot.
    """

    path: str
    sources: tuple[str, ...]
    version: str
    error: str


def wheels() -> tuple[Wheel, ...]:
    """Return the installed NCCL wheels, by name."""
    found: dict[str, Wheel] = {}
    for distribution in distributions():
        name = distribution.name or ""
        if re.fullmatch(r"nvidia-nccl-cu\d+", name):
            path = Path(str(distribution.locate_file("nvidia/nccl/lib/libnccl.so.2")))
            found.setdefault(name, Wheel(name, distribution.version, path))
    return tuple(found[name] for name in sorted(found))


def libraries(environment: Mapping[str, str] = os.environ) -> tuple[Library, ...]:
    """Return every libnccl that this process, a wheel or the system's loader knows."""
    sources: dict[str, list[str]] = {}
    for source, path in _sightings(environment):
        known = sources.setdefault(str(path.resolve()), [])
        if source not in known:
            known.append(source)
    return tuple(Library(path, tuple(who), *_ask(path, who)) for path, who in sources.items())


def _sightings(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if named := environment.get(VARIABLE):
        yield VARIABLE, Path(named)
    yield from ((LOADED, Path(path)) for path in loaded())
    yield from ((wheel.name, wheel.path) for wheel in wheels() if wheel.path.exists())
    for folder in filter(None, environment.get("LD_LIBRARY_PATH", "").split(":")):
        yield from (("LD_LIBRARY_PATH", path) for path in sorted(Path(folder).glob("libnccl.so*")))
    yield from (("ldconfig", path) for path in _cached())


def _cached() -> Iterator[Path]:
    """What the system's loader has in its cache."""
    command = shutil.which("ldconfig", path=f"{os.defpath}:/sbin:/usr/sbin")
    if command is None:
        return
    listed = subprocess.run([command, "-p"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith("libnccl.so"):
            yield Path(path)


def _ask(path: str, sources: list[str]) -> tuple[str, str]:
    """Return the version, or nothing and why."""
    try:
        if VARIABLE in sources:
            trusted(path, VARIABLE)
        command = [sys.executable, "-I", "-c", _ASK, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (CommUsageError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode:
        *_, reason = done.stderr.splitlines() or [f"ncclGetVersion returned {done.returncode}"]
        return "", reason
    return version_text(parse_version(int(done.stdout))), ""
