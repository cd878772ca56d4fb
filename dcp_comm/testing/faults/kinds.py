"""The kinds of fault, each a small frozen value that knows what it makes of its call."""

import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from dcp_comm.checks import check_int
from dcp_comm.contract import Call, byte_view
from dcp_comm.deadline import seconds
from dcp_comm.errors import CommArgumentError, refusal

_SAME_WIDTH = {
    1: (torch.uint8, torch.int8),
    2: (torch.float16, torch.bfloat16),
    4: (torch.float32, torch.int32),
    8: (torch.float64, torch.int64),
}


@dataclass(frozen=True)
class Fault(ABC):
    """What goes wrong once.

    Attributes:
        rank: On which rank of the communicator.
        call: At which of its calls, the first after arming being 0; those of a group count singly.
            Calls that move nothing never reach a backend, and are not counted there.

    Raises:
        CommArgumentError: A number is no int from 0 on.
    """

    rank: int
    call: int

    whole_process: ClassVar[bool] = False
    """Whether it strikes the process, and so every rank in it."""

    def __post_init__(self) -> None:
        for name in ("rank", "call"):
            check_int(type(self).__name__, name, getattr(self, name), 0)

    @abstractmethod
    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Return what becomes of the call, among ``size`` ranks."""


@dataclass(frozen=True)
class Raise(Fault):
    """An error instead of the call."""

    error: type[BaseException] = MemoryError

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Raise it."""
        raise self.error(f"ordered for rank {self.rank}, call {self.call}: {call}")


@dataclass(frozen=True)
class Delay(Fault):
    """The call comes late, by so many seconds."""

    seconds: float

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Sleep first."""
        time.sleep(self.seconds)
        return (call,)


@dataclass(frozen=True)
class _Signal(Fault):
    """A signal to the own process: before the call, or so many seconds into it."""

    after: float | None = None

    whole_process: ClassVar[bool] = True
    number: ClassVar[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.after is not None:
            seconds(self.after, type(self).__name__, "after")

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Send it now, or have a thread send it while the call is under way."""
        if self.after is None:
            self._send()
        else:
            thread = threading.Timer(self.after, self._send)
            thread.daemon = True
            thread.start()
        return (call,)

    def _send(self) -> None:
        os.kill(os.getpid(), self.number)


class Kill(_Signal):
    """The process ends without a word (SIGKILL), before the call or ``after`` seconds into it."""

    number: ClassVar[int] = signal.SIGKILL


class Stop(_Signal):
    """The process freezes (SIGSTOP) until somebody sends it SIGCONT; then the call goes on."""

    number: ClassVar[int] = signal.SIGSTOP


class Drop(Fault):
    """The call is not made, and seems to be done."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Make none."""
        return ()


class Swap(Fault):
    """The call is made after the next one, and seems to be done before."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Make none now; who counts the calls keeps it."""
        return ()


class WrongShape(Fault):
    """The call is about half of every block."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Cut its tensors."""
        blocks = size if call.op == "all_to_all_into" else 1
        block = max(1, min(call.input.numel(), call.output.numel()) // blocks)

        def cut(tensor: Tensor) -> Tensor:
            return tensor.reshape(-1)[: tensor.numel() // block * (block // 2)]

        return (replace(call, input=cut(call.input), output=cut(call.output)),)


class WrongDtype(Fault):
    """The call is about the same bytes as another dtype, of the same width where there is one."""

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """View its tensors."""
        legal = _SAME_WIDTH.get(call.input.itemsize, (torch.uint8,))
        other = next(dtype for dtype in legal if dtype != call.input.dtype)
        input, output = (each.reshape(-1).view(other) for each in (call.input, call.output))
        return (replace(call, input=input, output=output),)


class _Payload(Fault):
    """The right call with wrong bytes; the caller's own input stays as it is.

    Where a call has one tensor for both, as all_reduce has, that tensor is spoiled in place.
    """

    def strike(self, call: Call, size: int) -> tuple[Call, ...]:
        """Spoil what is sent, in a copy where there is an output beside it."""
        if call.input is call.output:
            self.spoil(byte_view(call.input))
            return (call,)
        input = call.input.detach().clone()
        self.spoil(byte_view(input))
        return (replace(call, input=input),)

    @abstractmethod
    def spoil(self, payload: Tensor) -> None:
        """Change the bytes (n,) uint8."""


class Truncate(_Payload):
    """The second half of the bytes that this rank sends never came: they are zeros."""

    def spoil(self, payload: Tensor) -> None:
        """Zero the second half."""
        payload[payload.numel() // 2 :] = 0


@dataclass(frozen=True)
class Flip(_Payload):
    """One bit of what this rank sends is another, counted from the first byte's lowest."""

    bit: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int(type(self).__name__, "bit", self.bit, 0)

    def spoil(self, payload: Tensor) -> None:
        """Flip it.

        Raises:
            CommArgumentError: The call has no such bit.
        """
        place, bit = divmod(self.bit, 8)
        if place >= payload.numel():
            need = f"below {8 * payload.numel()}, the bits of the call"
            raise CommArgumentError(refusal("Flip", "bit", self.bit, need))
        payload[place] ^= 1 << bit
