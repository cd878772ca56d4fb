"""The launcher of the tests: every kernel of some sources, run on the CPU."""

import ctypes
import threading
from collections.abc import Iterable
from typing import Any

from dcp_comm.kernels.cuda.sources import Source
from tests.kernels.simt.build import build

MOST_SHARED, LITTLE_SHARED = 226 << 10, 98 << 10
"""What a block may have with compute capability 9.0, and with 8.6, 8.9 and 12.0."""


class LaunchError(Exception):
    """A launch that a GPU would refuse, hang in, or corrupt memory by; says where and why."""


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("run", ctypes.c_void_p),
        ("parameters", ctypes.c_size_t),
        ("most_threads", ctypes.c_longlong),
    )


class Emulator:
    """Launches kernels on CPU memory, one block after another; a `Launcher`.

    The threads of a block take turns, and change at barriers, collectives of the warp and atomic
    operations. A result that depends on the order in which they do is a race, so tests use several
    seeds. Calls of several Python threads wait for each other.

    Args:
        sources: What to compile; the names of their kernels are all different.
        seed: In which order threads and blocks run: 0 in turn, 1 the latest first and as far as it
            can, 2 the first one as far as it can, any other at random.
        sanitize: Whether undefined behaviour (an index out of a static array, a signed overflow, a
            misaligned access) is an error; twice as slow.
        flags: More of the compiler's.
    """

    _lock = threading.Lock()

    def __init__(
        self,
        sources: Iterable[Source],
        *,
        seed: int = 0,
        sanitize: bool = True,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.seed = seed
        self.shared_bytes = MOST_SHARED
        self.launches: list[str] = []
        self._kernels: dict[str, tuple[Any, int, _Kernel]] = {}
        for source in sources:
            library = ctypes.CDLL(str(build(source, sanitize=sanitize, flags=flags)))
            library.simt_launch.restype = ctypes.c_char_p
            library.simt_kernel.restype = ctypes.POINTER(_Kernel)
            for index, name in enumerate(source.kernels):
                if name in self._kernels:
                    raise ValueError(f"two kernels are called {name}")
                self._kernels[name] = library, index, library.simt_kernel(index).contents

    def load(self, kernel: str) -> None:
        """Nothing: all kernels are."""

    def launch(
        self, kernel: str, grid: tuple[int, int], threads: int, shared: int, *args: int
    ) -> None:
        """Run a kernel to its end.

        Raises:
            LaunchError: The launch is illegal, deadlocks, or does what is undefined.
        """
        library, index, about = self._kernels[kernel]
        _check(kernel, about, grid, threads, shared, self.shared_bytes, len(args))
        sizes = (ctypes.c_uint * 4)(*grid, threads, shared)
        values = (ctypes.c_uint64 * max(1, len(args)))(*(arg & (2**64 - 1) for arg in args))
        with self._lock:
            self.launches.append(kernel)
            error: bytes = library.simt_launch(index, sizes, values, ctypes.c_uint64(self.seed))
        if error:
            raise LaunchError(error.decode(errors="replace"))


def _check(
    kernel: str,
    about: _Kernel,
    grid: tuple[int, int],
    threads: int,
    shared: int,
    most_shared: int,
    given: int,
) -> None:
    """Refuse what CUDA's driver refuses."""
    for what, got, least, most in (
        ("grid x", grid[0], 1, 2**31 - 1),
        ("grid y", grid[1], 1, 65535),
        ("threads", threads, 1, about.most_threads),
        ("shared bytes", shared, 0, most_shared),
        ("arguments", given, about.parameters, about.parameters),
    ):
        if not least <= got <= most:
            raise LaunchError(f"kernel {kernel}: {what}: got {got}, need {least} to {most}")
