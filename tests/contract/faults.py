"""Backends with one fault each, over a backend without: what the rules are there to find."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from dcp_comm.backend import Backend, Capabilities
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call, byte_view
from dcp_comm.control import Control
from dcp_comm.deadline import Deadline
from dcp_comm.rendezvous import Rendezvous


class Faulty(Backend):
    """Does what the backend below does, and then spoils it."""

    name: ClassVar[str] = "faulty"
    capabilities: ClassVar[Capabilities] = Capabilities(devices=("cpu",))

    def __init__(self, below: Backend) -> None:
        super().__init__(below.rank, below.size, below.device)
        self.below = below

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        raise NotImplementedError

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        self.below.issue([self.before(call) for call in calls], stream, deadline)
        for call in calls:
            self.after(call)

    def before(self, call: Call) -> Call:
        """Spoil what is about to be done."""
        return call

    def after(self, call: Call) -> None:
        """Spoil what was done."""

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> "Faulty | None":
        below = self.below.split(child, members)
        return None if below is None else type(self)(below)

    def abort(self) -> None:
        self.below.abort()

    def close(self, deadline: Deadline) -> None:
        self.below.close(deadline)


class SwapsSlots(Faulty):
    """The first two slots of a gather change places."""

    def after(self, call: Call) -> None:
        if call.op == "all_gather_into":
            slots = byte_view(call.output).view(self.size, -1)
            slots[:2] = slots[:2].flip(0).clone()


class Casts(Faulty):
    """Floats travel as bfloat16."""

    def after(self, call: Call) -> None:
        if call.op == "all_gather_into" and call.output.dtype == torch.float32:
            call.output.copy_(call.output.bfloat16())


class WritesPastTheEnd(Faulty):
    """One byte too many."""

    def after(self, call: Call) -> None:
        neighbours(call.output)[-1] ^= 1


class WritesBeforeTheStart(Faulty):
    """One byte too early."""

    def after(self, call: Call) -> None:
        neighbours(call.output)[0] ^= 1


class WritesToInput(Faulty):
    """Uses the caller's input as scratch."""

    def after(self, call: Call) -> None:
        if call.output is not call.input:
            byte_view(call.input).zero_()


class LosesTheOddByte(Faulty):
    """Moves 16-bit words."""

    def after(self, call: Call) -> None:
        if call.output.nbytes % 2:
            byte_view(call.output)[-1] ^= 1


class IgnoresTheRoot(Faulty):
    """Rank 0 is always the root."""

    def before(self, call: Call) -> Call:
        return replace(call, peer=0) if call.op == "broadcast" else call


class SumsAnyway(Faulty):
    """Every reduction is a sum."""

    def before(self, call: Call) -> Call:
        return replace(call, reduce="sum") if call.reduce else call


class ReducesInFloat(Faulty):
    """Reductions take the way through fp32."""

    def after(self, call: Call) -> None:
        if call.reduce:
            call.output.copy_(call.output.float())


class DeliversTheCallBefore(Faulty):
    """Answers with the last answer of the same size."""

    def __init__(self, below: Backend) -> None:
        super().__init__(below)
        self.last: dict[int, Tensor] = {}

    def after(self, call: Call) -> None:
        if call.op == "all_gather_into":
            found = byte_view(call.output)
            now = found.clone()
            found.copy_(self.last.get(len(now), now))
            self.last[len(now)] = now


class OneByOne(Faulty):
    """Waits for each call of a group before it starts the next."""

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        for call in calls:
            self.below.issue([call], stream, deadline)


class ReversesParts(Faulty):
    """Gathers of a part come in reversed order."""

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> "Faulty | None":
        below = self.below.split(child, members)
        return None if below is None else ReversesGathers(below)


class ReversesGathers(Faulty):
    """Slots stand in falling order of rank."""

    def after(self, call: Call) -> None:
        if call.op == "all_gather_into":
            slots = byte_view(call.output).view(self.size, -1)
            slots.copy_(slots.flip(0).clone())


class OnlyOnRankOne(SwapsSlots):
    """The fault of one rank alone."""

    def after(self, call: Call) -> None:
        if self.rank == 1:
            super().after(call)


class Deaf(Control):
    """A control plane that answers without asking."""

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        raise NotImplementedError

    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        return [record] * self.size

    def close(self) -> None:
        pass


def neighbours(tensor: Tensor) -> Tensor:
    """A tensor's bytes and one on either side."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    first = tensor.storage_offset() * tensor.element_size()
    return whole[max(0, first - 1) : first + tensor.nbytes + 1]


def spoil(comm: Communicator, fault: type[Faulty]) -> Communicator:
    """Put a fault between a communicator and its backend."""
    comm._channel.backend = fault(comm._channel.backend)
    return comm
