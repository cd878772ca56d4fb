"""The package's kernels on the CPU."""

from functools import cache

import pytest

from dcp_comm.kernels.cuda.primitives import CAPACITIES
from dcp_comm.kernels.cuda.sources import PACKAGE, Source
from tests.kernels.simt.build import missing
from tests.kernels.simt.emulator import LITTLE_SHARED, Emulator

COMMON = ("list", "settle", "windows", "emit")

needs_compiler = pytest.mark.skipif(bool(missing()), reason=missing())


@cache
def emulator(capacity: int = min(CAPACITIES), *, sanitize: bool = False) -> Emulator:
    """All kernels that rows of up to ``capacity`` need, compiled once."""
    names = (f"pack_{capacity}", f"merge_{capacity}", f"select_{capacity}", *COMMON)
    sources = [Source.read(PACKAGE / f"{name}.cu") for name in names]
    return Emulator(sources, sanitize=sanitize)


def emulator_for(k: int, seed: int, *, sanitize: bool = False) -> Emulator:
    """Kernels for rows of K, whose threads run in the order of that seed."""
    found = emulator(next(each for each in CAPACITIES if k <= each), sanitize=sanitize)
    found.seed = seed
    return found


class Loads:
    """A `Launcher` that keeps the names of what it is asked to load, and launches nothing."""

    shared_bytes = LITTLE_SHARED

    def __init__(self) -> None:
        self.names: list[str] = []

    def load(self, kernel: str) -> None:
        self.names.append(kernel)

    def launch(
        self, kernel: str, grid: tuple[int, int], threads: int, shared: int, *args: int
    ) -> None:
        raise AssertionError(f"launched {kernel}")
