"""Launches: a kernel by its name, on torch's current stream of one device.

Everything is loaded when a launcher is made, so that a launch neither allocates, loads nor waits,
and can be captured.
"""

import struct
from functools import cache
from typing import Protocol

import torch

from dcp_comm.errors import CommArgumentError, refusal
from dcp_comm.kernels.cuda import compiler, sources
from dcp_comm.kernels.cuda.driver import Address, Driver, Record, layout
from dcp_comm.kernels.cuda.sources import Source


class Launcher(Protocol):
    """What runs kernels."""

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

    Any number of Python threads may launch at once. The kernels live as long as the process.

    Args:
        device: The GPU, with its index.
        units: What to compile and load; the names of their kernels are all different.

    Raises:
        BackendUnavailable: cuda-core or NVRTC is missing or too old.
        DcpCommError: The compiler or the driver refuses a source.
    """

    def __init__(self, device: torch.device, units: tuple[Source, ...]) -> None:
        self._index = device.index
        self._cuda = Driver()
        self._context = self._cuda.primary_context(device.index)
        self._record = Record()
        self._kernels: dict[str, tuple[Address, struct.Struct, int]] = {}
        arch = compiler.architecture(device)
        for unit in units:
            image = compiler.cubin(unit, arch)
            with self._cuda.current(self._context):
                library = self._cuda.load(image)
                for name, parameters in unit.kernels:
                    function = self._cuda.function(library, name, device.index)
                    self._kernels[name] = function, layout(parameters), parameters

    def launch(
        self, kernel: str, grid: tuple[int, int], threads: int, shared: int, *args: int
    ) -> None:
        """Enqueue a kernel on torch's current stream of the device; returns at once.

        Raises:
            CommArgumentError: The kernel takes another number of arguments; nothing is enqueued.
            DcpCommError: The driver refuses the launch.
        """
        function, form, parameters = self._kernels[kernel]
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


@cache
def cuda_launcher(index: int) -> CudaLauncher:
    """Return the launcher of every kernel of this package on one GPU; compiled and loaded once."""
    return CudaLauncher(torch.device("cuda", index), sources.read_all())
