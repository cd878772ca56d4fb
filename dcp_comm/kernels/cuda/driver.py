"""The few calls of the CUDA driver that load kernels and launch them."""

import ctypes
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dcp_comm.errors import DcpCommError
from dcp_comm.kernels.cuda.unavailable import KernelsUnavailable
from dcp_comm.streams import driver

_SHARED_BYTES = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: static
_MOST_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MOST_SHARED_BYTES = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN

Address = ctypes.c_void_p

# CUlaunchConfig: grid, block, shared bytes, stream, launch attributes, how many of them.
_CONFIG = "7IPPI"
_CONFIG_BYTES = struct.calcsize(f"{_CONFIG}0q")
_MOST_PARAMETERS = 64


def layout(parameters: int) -> struct.Struct:
    """Return how a `Record` holds a launch of so many parameters.

    Raises:
        DcpCommError: There are more than a record has room for.
    """
    if parameters > _MOST_PARAMETERS:
        raise DcpCommError(f"kernel: got {parameters} parameters, need at most {_MOST_PARAMETERS}")
    return struct.Struct(f"{_CONFIG}{parameters}q")


class Record(threading.local):
    """Where one Python thread writes a launch: its configuration, then its arguments.

    The driver copies both during the call, so that one record does for all launches. It is written
    by one `layout` and not field by field, which would take most of a launch's time.
    """

    def __init__(self) -> None:
        self.memory = (ctypes.c_char * (_CONFIG_BYTES + 8 * _MOST_PARAMETERS))()
        start = ctypes.addressof(self.memory)
        places = range(start + _CONFIG_BYTES, start + len(self.memory), 8)
        self._pointers = (Address * _MOST_PARAMETERS)(*places)
        self.config = Address(start)
        self.arguments = Address(ctypes.addressof(self._pointers))
        self.context = Address()
        self.context_place = ctypes.byref(self.context)


class Driver:
    """The few calls of the CUDA driver that load and launch.

    Raises:
        KernelsUnavailable: The driver is missing or too old.
    """

    def __init__(self) -> None:
        try:
            self._library = driver()
        except OSError as error:
            raise KernelsUnavailable(f"a CUDA driver: {error}") from error
        self._launch = self._library.cuLaunchKernelEx
        self._get_current = self._library.cuCtxGetCurrent
        try:
            self._parameter_info = self._library.cuFuncGetParamInfo
        except AttributeError as error:
            raise KernelsUnavailable("a driver of CUDA 12.4 or newer") from error

    def check(self, status: int, what: str) -> None:
        """Raise what a status says."""
        if status:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(name))
            raise DcpCommError(f"{what}: {(name.value or b'CUDA error').decode()} ({status})")

    def primary_context(self, index: int) -> Address:
        """Return the context that torch uses on a device, made if need be and kept."""
        context, device = Address(), self._device(index)
        self.check(self._library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "context")
        return context

    def shared_bytes(self, index: int) -> int:
        """Return how much shared memory a block may have on a device."""
        most, device = ctypes.c_int(), self._device(index)
        status = self._library.cuDeviceGetAttribute(ctypes.byref(most), _MOST_SHARED_BYTES, device)
        self.check(status, f"shared memory of GPU {index}")
        return most.value

    def is_current(self, context: Address, record: Record) -> bool:
        """Whether a context is this thread's current one."""
        return self._get_current(record.context_place) == 0 and (
            record.context.value == context.value
        )

    @contextmanager
    def current(self, context: Address) -> Iterator[None]:
        """Make a context current, and afterwards the one that was."""
        self.check(self._library.cuCtxPushCurrent_v2(context), "context")
        try:
            yield
        finally:
            self._library.cuCtxPopCurrent_v2(ctypes.byref(Address()))

    def load(self, image: bytes) -> Address:
        """Load a cubin; it stays."""
        library, nothing = Address(), (None, None, 0, None, None, 0)
        status = self._library.cuLibraryLoadData(ctypes.byref(library), image, *nothing)
        self.check(status, "load of a cubin")
        return library

    def function(self, library: Address, name: str, index: int) -> Address:
        """Return a kernel in the current context, on the GPU and free to use its shared memory."""
        kernel, function = Address(), Address()
        status = self._library.cuLibraryGetKernel(ctypes.byref(kernel), library, name.encode())
        self.check(status, f"load of {name}")
        status = self._library.cuKernelGetFunction(ctypes.byref(function), kernel)
        self.check(status, f"load of {name}")
        self._allow_shared(function, name, index)
        return function

    def parameters(self, function: Address, name: str) -> int:
        """Return how many parameters a kernel takes, all of 64 bits, one behind the other."""
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        places = ctypes.byref(offset), ctypes.byref(size)
        count = 0
        while self._parameter_info(function, ctypes.c_size_t(count), *places) == 0:
            if (offset.value, size.value) != (8 * count, 8):
                raise DcpCommError(f"load of {name}: parameter {count} is not one of 64 bits")
            count += 1
        return count

    def launch(self, function: Address, record: Record) -> int:
        """Enqueue what the record says; the driver's status."""
        status: int = self._launch(record.config, function, record.arguments, None)
        return status

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.check(self._library.cuInit(0), "CUDA driver")
        self.check(self._library.cuDeviceGet(ctypes.byref(device), index), f"GPU {index}")
        return device

    def _allow_shared(self, function: Address, name: str, index: int) -> None:
        """Lift the limit of 48 KiB to what the GPU has; that also loads what is loaded lazily."""
        most, static = self.shared_bytes(index), ctypes.c_int()
        status = self._library.cuFuncGetAttribute(
            ctypes.byref(static), _SHARED_BYTES, function
        ) or self._library.cuFuncSetAttribute(
            function, _MOST_DYNAMIC_SHARED_BYTES, most - static.value
        )
        self.check(status, f"shared memory of {name}")
