"""The seam between a merge and the way its bytes travel: one `Strategy`, one file each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.kernels import torch_ops as ops
from dcp_comm.sharding import Shard
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.keys import PAD
from dcp_comm.topk.result import MergeResult


@dataclass(frozen=True)
class Problem:
    """What a merge computes, whichever strategy moves the bytes.

    Attributes:
        comm: Whose ranks hold the candidates.
        k: Winners a row, and candidates a rank and row.
        output: ``global`` ids of all winners, or ``local`` positions of this rank's own.
        order: ``score``: by key, best first; ``position``: ascending by id.
        shard: This rank's place in the KV interleave.
        mask_neg_inf: Whether -inf is padding.
    """

    comm: Communicator
    k: int
    output: str
    order: str
    shard: Shard
    mask_neg_inf: bool

    def emit(self, runs: Tensor, lengths: Tensor, out: MergeResult) -> None:
        """Write ids and counts of the prefixes of runs int64 (q, rows, n): of all, or of ours."""
        ops.emit(
            out.ids,
            runs,
            lengths,
            by_position=self.order == "position",
            shard=self.shard if self.output == "local" else None,
        )
        out.counts.copy_(lengths.sum(0).clamp(max=self.k))

    def emit_all(self, run: Tensor, out: MergeResult) -> None:
        """Write this rank's whole run int64 (rows, K), where every candidate is known to win."""
        runs = run[None]
        self.emit(runs, ops.count_ge(runs, PAD + 1), out)
        out.certified.fill_(True)


class Strategy(ABC):
    """Moves and selects one chunk of rows at a time.

    A chunk's life: the merge packs sorted runs into `run`, then calls `merge`, on every rank alike.
    What is called, and with which sizes, depends on agreed values only, never on data.
    """

    name: ClassVar[str]
    outputs: ClassVar[tuple[str, ...]]
    default_chunk_rows: ClassVar[int]

    def __init__(self, problem: Problem) -> None:
        """Keep the problem; nothing is sent."""
        self.problem = problem

    @abstractmethod
    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Return the scratch that chunks of up to ``rows`` rows need together."""

    @abstractmethod
    def run(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """Return the int64 (rows, K) view of the scratch where this rank's runs belong."""

    @abstractmethod
    def merge(self, scratch: Sequence[Tensor], out: MergeResult) -> None:
        """Exchange the chunk whose runs are packed, and write its rows to ``out``."""

    @abstractmethod
    def explain(self) -> str:
        """Return what travels, in one clause, with the bytes each row receives."""
