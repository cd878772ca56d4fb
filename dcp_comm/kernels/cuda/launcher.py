"""Launches: a kernel by its name, on torch's current stream of one device.

A launch neither allocates nor waits, and can be captured; but for the first of a kernel, which
compiles and loads.
"""

import struct
import threading
from functools import cache
from typing import Protocol

import torch

from dcp_comm.errors import CommArgumentError, refusal
from dcp_comm.kernels.cuda import compiler, sources
from dcp_comm.kernels.cuda.driver import Address, Driver, Record, layout
from dcp_comm.kernels.cuda.sources import Source

_STATIC_BYTES = 1 << 10  # more than any kernel has of static shared memory


class Launcher(Protocol):
    """What runs kernels.

    Attributes:
        shared_bytes: Dynamic shared memory that a block may have.
    """

    shared_bytes: int

    def load(self, kernel: str) -> None:
        """Make sure that launches of a kernel, and of all others of its source, are quick."""

    def launch(
        self, kernel: str, grid: tuple[int, int], threads: int, shared: int, *args: int
    ) -> None:
        """Run a kernel, or enqueue it.

        Args:
            kernel: Its name in the sources.
            grid: How many blocks, along x and y.
            threads: How many threads in a block.
            shared: The bytes of dynamic shared memory.
            *args: Addresses of tensors and integers; each is passed as 64 bits.
        """


class CudaLauncher:
    """Launches on a GPU; a `Launcher`.

    The first launch of a kernel compiles its source, or finds it compiled on disk, and loads it: a
    warm-up has to launch every kernel before one is captured or has to be quick. Any number of
    Python threads may launch at once. What is loaded stays as long as the process.

    Args:
        device: The GPU, with its index.
        units: The sources; the names of their kernels are all different.

    Raises:
        KernelsUnavailable: The driver is missing or too old.
    """

    def __init__(self, device: torch.device, units: tuple[Source, ...]) -> None:
        self._device = device
        self._index = device.index
        self._units = {name: unit for unit in units for name in unit.kernels}
        self._cuda = Driver()
        self._context = self._cuda.primary_context(device.index)
        self.shared_bytes = self._cuda.shared_bytes(device.index) - _STATIC_BYTES
        self._record = Record()
        self._loading = threading.Lock()
        self._kernels: dict[str, tuple[Address, struct.Struct, int]] = {}

    def launch(
        self, kernel: str, grid: tuple[int, int], threads: int, shared: int, *args: int
    ) -> None:
        """Enqueue a kernel on torch's current stream of the device; returns at once.

        Raises:
            CommArgumentError: The kernel takes another number of arguments; nothing is enqueued.
            KernelsUnavailable: This is the first launch, and cuda-core or NVRTC is missing or too
                old.
            DcpCommError: The driver refuses the launch, or the compiler a source.
        """
        known = self._kernels.get(kernel)
        if known is None:
            self.load(kernel)
            known = self._kernels[kernel]
        function, form, parameters = known
        if len(args) != parameters:
            need = f"{parameters} of them"
            raise CommArgumentError(refusal("launch", f"arguments of {kernel}", len(args), need))
        x, y = grid
        stream = torch._C._cuda_getCurrentRawStream(self._index)
        record, cuda = self._record, self._cuda
        form.pack_into(record.memory, 0, x, y, 1, threads, 1, 1, shared, stream, 0, 0, *args)
        if cuda.is_current(self._context, record):
            status = cuda.launch(function, record)
        else:
            with cuda.current(self._context):
                status = cuda.launch(function, record)
        if status:
            cuda.check(status, f"launch of {kernel} on {grid} blocks of {threads} threads")

    def load(self, kernel: str) -> None:
        """Compile and load the source of a kernel, unless that was done before.

        Raises:
            KernelsUnavailable: cuda-core or NVRTC is missing or too old.
            DcpCommError: The compiler or the driver refuses the source.
        """
        with self._loading:
            if kernel in self._kernels:
                return
            unit, cuda = self._units[kernel], self._cuda
            image = compiler.cubin(unit, compiler.architecture(self._device))
            with cuda.current(self._context):
                library = cuda.load(image)
                for name in unit.kernels:
                    function = cuda.function(library, name, self._index)
                    parameters = cuda.parameters(function, name)
                    self._kernels[name] = function, layout(parameters), parameters


@cache
def cuda_launcher(index: int) -> CudaLauncher:
    """Return the launcher of every kernel of this package on one GPU."""
    return CudaLauncher(torch.device("cuda", index), sources.read_all())
