"""From a CUDA C++ source to a library of the host: a wrapper around it, and ``g++``."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from dcp_comm.kernels.cuda.sources import Source

HERE = Path(__file__).parent
COMPILER = "g++"
FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-ffp-contract=off",  # the sources say which multiplications and additions are one
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fvisibility=hidden",  # or the libraries of two sources would share their variables
    "-fno-gnu-unique",
    "-fno-extern-tls-init",
    "-Wno-unknown-pragmas",
)
SANITIZE = ("-fsanitize=undefined", "-fno-sanitize=vptr")

_DYNAMIC = re.compile(r"extern\s+__shared__\s[^;]*?(\w+)\s*\[\s*\]\s*;")
_BOUNDS = re.compile(r"__launch_bounds__\s*\(((?:[^(),]|\([^()]*\))*)")

_WRAPPER = """\
#include "simt.h"

alignas(1024) thread_local unsigned char {dynamic}[simt::most_shared + simt::guard_bytes];

#include "{path}"

static const simt::Kernel table[] = {{
{rows}
}};

extern "C" __attribute__((visibility("default")))
const char* simt_launch(unsigned kernel, const unsigned* sizes, const uint64_t* arguments,
                        uint64_t seed) {{
    return simt::launch(table[kernel], sizes, arguments, seed, {dynamic});
}}

extern "C" __attribute__((visibility("default")))
const simt::Kernel* simt_kernel(unsigned kernel) {{ return &table[kernel]; }}
"""
_ROW = '    {{"{name}", simt::Call<{name}>::run, simt::Call<{name}>::parameters, {most_threads}}},'


class BuildError(Exception):
    """The compiler refused a source; its words are the message."""


@cache
def missing() -> str:
    """Why nothing can be built here; empty if it can."""
    return "" if shutil.which(COMPILER) else f"needs {COMPILER}, to compile CUDA C++ for the host"


def build(source: Source, *, sanitize: bool = True, flags: tuple[str, ...] = ()) -> Path:
    """Return the library of a source, compiled unless that was done before.

    Raises:
        BuildError: The compiler refuses it.
    """
    wrapped = wrapper(source)
    options = (*FLAGS, *(SANITIZE if sanitize else ()), *flags)
    folder = cache_folder()
    stem = f"{source.path.stem}-{_fingerprint(wrapped, source, options)}"
    library = folder / f"{stem}.so"
    with (folder / f"{stem}.lock").open("w") as lock:  # other test workers want the same
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(wrapped, options, library)
    return library


def wrapper(source: Source) -> str:
    """Return the C++ that makes a library of a source.

    Raises:
        BuildError: Its dynamic shared memory goes by two names, which would not be one memory.
    """
    texts = (source.text, *(text for _, text in source.headers))
    names = sorted({name for text in texts for name in _DYNAMIC.findall(text)})
    if len(names) > 1:
        raise BuildError(f"{source.path.name}: one name for dynamic shared memory, not {names}")
    rows = [_ROW.format(name=name, most_threads=_bounds(source, name)) for name in source.kernels]
    dynamic = names[0] if names else "simt_dynamic"
    return _WRAPPER.format(path=source.path, rows="\n".join(rows), dynamic=dynamic)


def cache_folder() -> Path:
    """A folder of this user's own, kept between runs."""
    folder = Path(tempfile.gettempdir()) / f"dcp-comm-simt-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022 or folder.is_symlink():
        return Path(tempfile.mkdtemp(prefix="dcp-comm-simt-"))
    return folder


def _bounds(source: Source, kernel: str) -> str:
    declared = re.search(rf'extern\s+"C"\s+__global__[^;{{}}]*?\b{kernel}\s*\(', source.text)
    bounds = _BOUNDS.search(declared[0]) if declared else None
    return bounds[1].strip() if bounds else "simt::max_threads"


def _fingerprint(wrapped: str, source: Source, options: tuple[str, ...]) -> str:
    emulator = [path.read_text() for path in sorted(HERE.glob("*.h"))]
    parts = [wrapped, source.text, repr(source.headers), repr(options), _version(), *emulator]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@cache
def _version() -> str:
    command = [COMPILER, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _compile(wrapped: str, options: tuple[str, ...], library: Path) -> None:
    """In two steps: told of the sanitizer, the linker would bring its own reports, not ours."""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        unit, binary, made = (Path(scratch, name) for name in ("unit.cpp", "unit.o", "unit.so"))
        unit.write_text(wrapped)
        _run(COMPILER, *options, f"-I{HERE}", "-c", str(unit), "-o", str(binary))
        _run(COMPILER, "-shared", "-Wl,-z,defs,-Bsymbolic", str(binary), "-o", str(made))
        made.replace(library)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(done.stderr)
