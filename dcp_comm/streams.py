"""The CUDA streams of one communicator: which one is current, and in which order they are used."""

import ctypes
from functools import cache

import torch

Stream = torch.cuda.Stream


class Streams:
    """Joins the streams from which one communicator is used, so that its calls keep their order.

    NCCL takes the calls of a communicator from one stream at a time. A call on another stream than
    the call before first waits, on the GPU, for all that the other stream holds by then. A call
    that is being captured is not joined to one that is not: a graph runs when it is replayed, and
    replays of one communicator are for the caller to order. A stream that is not torch's own has to
    live until the communicator is used on another one or is closed.

    Args:
        device: The communicator's GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[int, Stream] = {}
        self._last: Stream | None = None

    def current(self) -> Stream:
        """Return torch's current stream, the same object each time: making one takes longer."""
        address = torch._C._cuda_getCurrentRawStream(self._device.index)
        if address not in self._known:
            self._known[address] = torch.cuda.current_stream(self._device)
        return self._known[address]

    def enter(self, stream: Stream) -> None:
        """Order what comes next on ``stream`` after what went before on another one."""
        last, self._last = self._last, stream
        if last is None or last is stream or last == stream:
            return
        if captures(last) == captures(stream):
            stream.wait_event(last.record_event())


def captures(stream: Stream) -> bool:
    """Whether a graph is being captured on a stream; from any thread."""
    status = ctypes.c_int()
    address = ctypes.c_void_p(stream.cuda_stream)
    code = driver().cuStreamIsCapturing(address, ctypes.byref(status))
    return bool(code == 0 and status.value)


@cache
def driver() -> ctypes.CDLL:
    """The CUDA driver, for what torch does not offer."""
    return ctypes.CDLL("libcuda.so.1")
