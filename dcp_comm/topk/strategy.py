"""The seam between a merge and the way its bytes travel: one `Strategy`, one file each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.kernels.dispatch import merge_limits
from dcp_comm.kernels.primitives import BlockTable, Emission, Primitives, Splitters
from dcp_comm.sharding import Shard
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.result import MergeResult


@dataclass(frozen=True)
class Problem:
    """What a merge computes, whichever strategy moves the bytes.

    Attributes:
        comm: Whose ranks hold the candidates.
        k: Winners a row, and candidates a rank and row.
        kernels: What does the arithmetic.
        output: ``global`` ids of all winners, or ``local`` positions of this rank's own, which
            ``slots`` are made of.
        order: ``score``: by key, best first; ``position``: ascending by id.
        shard: This rank's place in the KV interleave.
        mask_neg_inf: Whether -inf is padding.
        tail: Whether -1 is written behind the winners.
    """

    comm: Communicator
    k: int
    kernels: Primitives
    output: str
    order: str
    shard: Shard
    mask_neg_inf: bool
    tail: bool = True

    @cached_property
    def selects_lists(self) -> bool:
        """Whether winners are best selected from lists that nobody has sorted.

        A matter of what ranks agree on, not of who does the arithmetic: all have to send alike.
        """
        return self.comm.device.type == "cuda" and not merge_limits(self.k, self.comm.size)

    def emission(
        self, out: MergeResult, uncertified: Tensor, table: BlockTable | None = None
    ) -> Emission:
        """Return what writes to ``out``, counting what is not certified."""
        shard = None if self.output == "global" else self.shard
        by_position = self.order == "position"
        columns = (out.ids, out.counts, out.certified)
        return Emission(*columns, uncertified, by_position, shard, table, self.tail)


class Strategy(ABC):
    """Moves and selects one chunk of rows at a time.

    A chunk's life: the merge packs runs, or lists, into `run`, and their `splitters`, then calls
    `merge`, on every rank alike.
    What is called, and with which sizes, depends on agreed values only, never on data.
    """

    name: ClassVar[str]
    outputs: ClassVar[tuple[str, ...]]

    def __init__(self, problem: Problem) -> None:
        """Keep the problem; nothing is sent."""
        self.problem = problem

    @abstractmethod
    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Return the scratch that chunks of up to ``rows`` rows need together."""

    @abstractmethod
    def run(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """Return the int64 (rows, K) view of the scratch where this rank's keys belong."""

    def takes_lists(self, rows: int) -> bool:
        """Return whether a chunk of so many rows is packed as lists, and not as runs."""
        return False

    def splitters(self, scratch: Sequence[Tensor], rows: int) -> Splitters | None:
        """Return where the splitters of these runs belong; None if they are of no use here."""
        return None

    @abstractmethod
    def merge(self, scratch: Sequence[Tensor], to: Emission) -> None:
        """Exchange the chunk that is packed, and write its winners."""
