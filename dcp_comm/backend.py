"""Backend: the small base class that every way of moving bytes derives from."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from dcp_comm.contract import Call, byte_view
from dcp_comm.deadline import Deadline
from dcp_comm.rendezvous import Rendezvous


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do.

    Attributes:
        devices: Device types whose tensors it moves.
        capturable: Whether its calls can be captured in a CUDA graph.
        processes: Whether its ranks are processes, as `init` needs them.
    """

    devices: tuple[str, ...]
    capturable: bool = False
    processes: bool = True


class Backend(ABC):
    """Moves the bytes of checked calls between ranks.

    The rules, which the conformance suite tests:

    1. Tensors arrive checked (`dcp_comm.contract`): contiguous, on ``device``, sizes exact, never
       empty, overlapping only where the contract calls it in place. Do not check again.
    2. Moving operations move bytes: any dtype, 0-d too. Use `byte_view` where the library below is
       particular. Reductions come with the dtypes that the contract lists.
    3. Write only to a call's output. Never cast, never write to an input.
    4. ``issue`` launches all its calls as one: sends and receives among them may be mutual.
    5. On CPU ``issue`` returns when the outputs are valid. On CUDA it enqueues on ``stream`` and
       returns at once.
    6. Every wait is bounded by the deadline it is given and lets signal handlers run
       (`Deadline.poll`, `Deadline.run`); expiry is CommTimeout, a vanished peer CommPeerLost.
    7. ``close`` and ``abort`` may be called at any time, from any thread, more than once.
    8. What the application owns (a given process group or communicator) is never destroyed.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    options_type: ClassVar[type | None] = None
    """Of what `init` may hand over as ``options``; None for a backend that has none."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device

    @classmethod
    def unavailable(cls) -> str:
        """Why this backend cannot work on this machine; empty if it can."""
        return ""

    @classmethod
    def library(cls, device: torch.device) -> str:
        """The library below and its version; it must be the same on every rank."""
        return ""

    @classmethod
    def exclusive(cls, device: torch.device) -> str:
        """What a rank needs for itself: two that name the same are refused; empty for nothing."""
        return ""

    @classmethod
    @abstractmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Join the ranks of a rendezvous; collective, bounded by its deadline.

        Raises:
            BackendUnavailable: The library below cannot work here.
            CommTimeout: Not all ranks came.
        """

    @abstractmethod
    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        """Launch checked calls as one; see the rules above.

        Args:
            calls: In the order in which the caller made them.
            stream: The CUDA stream to enqueue on; None on CPU.
            deadline: Bounds every wait on the host.
        """

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> "Backend | None":
        """Make the backend of a part of the ranks; called on every rank, with None by outsiders."""
        return None if child is None else type(self).connect(child)

    def check(self) -> None:
        """Raise what went wrong behind the host's back (asynchronous errors), if anything did."""

    def abort(self) -> None:
        """Let peers that wait for this rank find out, as far as the library allows."""
        self.close(Deadline(1e-3))

    @abstractmethod
    def close(self, deadline: Deadline) -> None:
        """Let go of what this backend owns, within the deadline."""


class SoloBackend(Backend):
    """One rank alone: every collective is a copy or nothing, and needs no library.

    Args:
        name: The backend that was asked for, under which this one answers.
    """

    capabilities = Capabilities(devices=("cpu", "cuda"), capturable=True)

    def __init__(self, name: str, device: torch.device) -> None:
        super().__init__(0, 1, device)
        self.name = name  # type: ignore[misc]

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Stand alone on the rendezvous' device."""
        return cls("solo", rendezvous.device)

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        """Copy each input to its output unless they are the same memory."""
        with on_stream(stream):
            for call in calls:
                copy_bytes(call.output, call.input)

    def close(self, deadline: Deadline) -> None:
        """Nothing to let go of."""


def copy_bytes(output: torch.Tensor, input: torch.Tensor) -> None:
    """Copy equal numbers of bytes; nothing where both are the same memory."""
    if output.data_ptr() != input.data_ptr():
        byte_view(output).copy_(byte_view(input))


def on_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Make ``stream`` torch's current one for a while; None changes nothing.

    Most calls come on the stream that is current already, and switching costs more than asking.
    """
    if stream is None or _is_current(stream):
        return nullcontext()
    return torch.cuda.stream(stream)


def _is_current(stream: torch.cuda.Stream) -> bool:
    index = torch.cuda.current_device()
    return index == stream.device.index and (
        torch._C._cuda_getCurrentRawStream(index) == stream.cuda_stream
    )
