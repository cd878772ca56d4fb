"""Who evaluates a row, and how keys get there and answers back.

==========  ======================  =======================  ==========================
transport   a row is evaluated by   keys travel              answers travel
==========  ======================  =======================  ==========================
`Everyone`  every rank              by all-gather, in place  not at all
`Owners`    the rank that owns it   by all-to-all            by all-to-all
==========  ======================  =======================  ==========================

Owners are dealt consecutive rows, ``ceil(rows / p)`` each; rows that only fill up the last ones
travel too, as padding. An answer is one int64 for every row and rank.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import DcpCommError
from dcp_comm.specs import BufferSpec


def cut(buffer: Tensor, *shape: int) -> Tensor:
    """Return a buffer's first elements, so that a short chunk is contiguous too."""
    # A view holds the host for about as long as a kernel's launch: at most one.
    if buffer.shape == shape:
        return buffer
    if math.prod(shape) > buffer.numel():
        raise DcpCommError(f"{shape} does not fit into a buffer of {tuple(buffer.shape)}")
    return buffer.as_strided(shape, [math.prod(shape[at + 1 :]) for at in range(len(shape))])


def first(tensor: Tensor, rows: int) -> Tensor:
    """Return a tensor's first rows; the tensor itself where it has no more."""
    return tensor if tensor.shape[0] == rows else tensor[:rows]


@dataclass(eq=False, slots=True)
class Answers:
    """One int64 for every row and rank.

    Attributes:
        given: int64 (p, rows that this rank evaluates); (1, rows) where others need none.
        received: int64 (p, rows that each rank evaluates); the same memory where others need none.
    """

    given: Tensor
    received: Tensor


class Transport(ABC):
    """Takes keys to whoever evaluates their row, and answers back.

    Buffers are those of `key_specs` and `answer_specs`, for as many rows or more.

    Attributes:
        only: The rank whose answers this rank gives; None for all.
    """

    only: int | None = None

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm

    @abstractmethod
    def padded(self, rows: int) -> int:
        """Return how many rows travel where ``rows`` are merged."""

    @abstractmethod
    def key_specs(self, name: str, rows: int, width: int) -> tuple[BufferSpec, ...]:
        """Return the memory for ``width`` keys a row."""

    @abstractmethod
    def answer_specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Return the memory for an answer a row."""

    @abstractmethod
    def lay(self, buffers: Iterator[Tensor], rows: int, width: int) -> tuple[Tensor, Tensor]:
        """Return where this rank writes its keys, and where those of all ranks will lie.

        Args:
            buffers: The next ones are used.
            rows: Rows of this chunk.
            width: Keys a row.

        Returns:
            int64 (padded, width) and int64 (p, rows that this rank evaluates, width).
        """

    @abstractmethod
    def collect(self, everyones: Tensor, own: Tensor) -> None:
        """Fill ``everyones`` from all ranks' ``own``, both as `lay` returned them."""

    @abstractmethod
    def answers(self, buffers: Sequence[Tensor], rows: int) -> Answers:
        """Return where answers belong, in memory of `answer_specs`."""

    @abstractmethod
    def deliver(self, answers: Answers) -> Tensor:
        """Return this rank's answers int64 (padded,), once ``answers.given`` is written."""


class Everyone(Transport):
    """Every rank evaluates every row, and so has its answers already."""

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self.only = comm.rank

    def padded(self, rows: int) -> int:
        """No row is added."""
        return rows

    def key_specs(self, name: str, rows: int, width: int) -> tuple[BufferSpec, ...]:
        """One receive buffer."""
        return (BufferSpec(name, (self.comm.size, rows, width), torch.int64),)

    def answer_specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """This rank's."""
        return (BufferSpec("answers", (rows,), torch.int64),)

    def lay(self, buffers: Iterator[Tensor], rows: int, width: int) -> tuple[Tensor, Tensor]:
        """This rank's slot of the buffer, and the buffer."""
        everyones = cut(next(buffers), self.comm.size, rows, width)
        return everyones[self.comm.rank], everyones

    def collect(self, everyones: Tensor, own: Tensor) -> None:
        """All-gather in place."""
        self.comm.all_gather_into(everyones, own)

    def answers(self, buffers: Sequence[Tensor], rows: int) -> Answers:
        """This rank's."""
        own = cut(buffers[0], 1, rows)
        return Answers(own, own)

    def deliver(self, answers: Answers) -> Tensor:
        """Nothing travels."""
        return answers.given[0]


class Owners(Transport):
    """One rank evaluates a row: the fewest bytes, in twice the rounds."""

    def padded(self, rows: int) -> int:
        """A multiple of p."""
        return -(-rows // self.comm.size) * self.comm.size

    def key_specs(self, name: str, rows: int, width: int) -> tuple[BufferSpec, ...]:
        """What is sent and what is received."""
        shape = (self.padded(rows), width)
        names = (f"{name} sent", f"{name} received")
        return tuple(BufferSpec(each, shape, torch.int64) for each in names)

    def answer_specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Answers to others, and from others."""
        return self.key_specs("answers", rows, 1)

    def lay(self, buffers: Iterator[Tensor], rows: int, width: int) -> tuple[Tensor, Tensor]:
        """What is sent, owner after owner; what is received, rank after rank."""
        size, padded = self.comm.size, self.padded(rows)
        own = cut(next(buffers), padded, width)
        return own, cut(next(buffers), size, padded // size, width)

    def collect(self, everyones: Tensor, own: Tensor) -> None:
        """All-to-all: rows to their owners."""
        self.comm.all_to_all_into(everyones, own.view(everyones.shape))

    def answers(self, buffers: Sequence[Tensor], rows: int) -> Answers:
        """To others, and from others."""
        shape = (self.comm.size, self.padded(rows) // self.comm.size)
        given, received = (cut(buffer, *shape) for buffer in buffers)
        return Answers(given, received)

    def deliver(self, answers: Answers) -> Tensor:
        """All-to-all: answers to their ranks, which puts them in the order of rows."""
        self.comm.all_to_all_into(answers.received, answers.given)
        return answers.received.view(-1)
