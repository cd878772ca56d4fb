"""The two ways in which the ranks' results travel to the rank that keeps their heads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dcp_comm.attention.combine import Total, combine
from dcp_comm.attention.result import Attended
from dcp_comm.communicator import Communicator
from dcp_comm.kernels.torch_ops import row_blocks
from dcp_comm.specs import BufferSpec


@dataclass(frozen=True)
class Shape:
    """What is merged: H heads of V elements each, of which a rank keeps H / p.

    Attributes:
        comm: The ranks.
        heads: H, a multiple of their number.
        dim: V.
        dtype: Of the outputs.
        base: Logarithm of the LSE.
    """

    comm: Communicator
    heads: int
    dim: int
    dtype: torch.dtype
    base: str

    @property
    def kept(self) -> int:
        """Heads that a rank ends with."""
        return self.heads // self.comm.size

    def by_rank(self, tensor: Tensor) -> Tensor:
        """Return (n, H, ...) as (p, n, H / p, ...): to each rank its heads."""
        parts: Tensor = tensor.unflatten(1, (self.comm.size, self.kept))
        return parts.movedim(1, 0)


class Way(ABC):
    """One way; a rank's scratch and exchanges depend on shape and rows alone."""

    name: ClassVar[str]

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @abstractmethod
    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Return the scratch of up to so many rows."""

    @abstractmethod
    def merge(self, mine: Attended, out: Attended, scratch: Sequence[Tensor]) -> None:
        """Write this rank's heads of the merged rows; collective.

        Args:
            mine: This rank's result for all heads, n rows.
            out: (n, H / p, V) and (n, H / p), overwritten.
            scratch: Views of `specs` for at least n rows, overwritten.
        """


class AllToAll(Way):
    """One message of (LSE, output) to each rank, combined there in rank order.

    What travels is what attention wrote, so that the result is the same over every backend, bit for
    bit. A block is its LSEs, then its outputs; it is padded, so that both stay aligned.
    """

    name = "all_to_all"

    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Return two messages, ``p * (H/p * rows * (4 + V * itemsize))`` bytes each, padded."""
        message = self.shape.comm.size, self._block(rows)
        return (
            BufferSpec("LSE messages sent", message, torch.uint8),
            BufferSpec("LSE messages received", message, torch.uint8),
        )

    def merge(self, mine: Attended, out: Attended, scratch: Sequence[Tensor]) -> None:
        """Pack, exchange once, combine."""
        shape, rows = self.shape, len(mine.lse)
        sent, received = (front(each, shape.comm.size, self._block(rows)) for each in scratch)
        lses, partials = self._fields(sent, rows)
        lses.copy_(shape.by_rank(mine.lse))
        partials.copy_(shape.by_rank(mine.out))
        shape.comm.all_to_all_into(received, sent)
        lses, partials = self._fields(received, rows)
        combine(out, partials, lses, shape.base)

    def _block(self, rows: int) -> int:
        """Bytes of one rank's block."""
        nbytes = rows * self.shape.kept * (4 + self.shape.dim * self.shape.dtype.itemsize)
        return -(-nbytes // 16) * 16

    def _fields(self, messages: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the LSEs (p, rows, H/p) and outputs (p, rows, H/p, V) in uint8 (p, block)."""
        kept, dim, dtype = self.shape.kept, self.shape.dim, self.shape.dtype
        end = 4 * rows * kept
        lses = messages[:, :end].view(torch.float32).unflatten(1, (rows, kept))
        outputs = messages[:, end : end + rows * kept * dim * dtype.itemsize].view(dtype)
        return lses, outputs.unflatten(1, (rows, kept, dim))


class ReduceScatter(Way):
    """All-gather of the LSEs, then a reduce-scatter of the weighted float32 outputs over the heads.

    The backend's reduction decides in which order p terms are summed: from p = 3 on the last bits
    may differ from one backend to the next.
    """

    name = "reduce_scatter"

    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Return ``4 * p * rows * H`` bytes of LSEs, ``4 * rows * H * V`` of outputs."""
        shape = self.shape
        size, blocks = shape.comm.size, (shape.comm.size, rows, shape.kept, shape.dim)
        return (
            BufferSpec("LSEs", (size, rows, shape.heads), torch.float32),
            BufferSpec("weighted outputs", blocks, torch.float32),
        )

    def merge(self, mine: Attended, out: Attended, scratch: Sequence[Tensor]) -> None:
        """Gather the LSEs, weigh what is mine, sum over the ranks."""
        shape, comm, n = self.shape, self.shape.comm, len(mine.lse)
        lses = front(scratch[0], comm.size, n, shape.heads)
        blocks = front(scratch[1], comm.size, n, shape.kept, shape.dim)
        lses[comm.rank].copy_(mine.lse)
        comm.all_gather_into(lses, lses[comm.rank])
        for rows in row_blocks(n):
            total = Total.of(lses[:, rows], shape.base)
            blocks[:, rows] = shape.by_rank(total.weighted(*mine.part(rows)))
            out.lse[rows] = shape.by_rank(total.lse)[comm.rank]
        comm.reduce_scatter_into(blocks[comm.rank], blocks)
        out.out.copy_(blocks[comm.rank])


WAYS: dict[str, type[Way]] = {way.name: way for way in (AllToAll, ReduceScatter)}


def front(buffer: Tensor, *shape: int) -> Tensor:
    """Return the first elements of a contiguous buffer in this shape."""
    count = torch.Size(shape).numel()
    return buffer.view(-1)[:count].view(shape)
