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
        output: ``global`` ids of all winners, or ``local`` positions of this rank's own; ``slots``
            are written as local positions first.
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

    def emit_ids(self, ids: Tensor, runs: Tensor, lengths: Tensor) -> None:
        """Write ids (rows, K) of the prefixes of runs int64 (q, rows, n): global or local ones."""
        shard = None if self.output == "global" else self.shard
        ops.emit(ids, runs, lengths, by_position=self.order == "position", shard=shard)

    def emit(self, runs: Tensor, lengths: Tensor, out: MergeResult) -> None:
        """Write ids and counts of prefixes (q, rows) that hold valid keys alone."""
        self.emit_ids(out.ids, runs, lengths)
        out.counts.copy_(lengths.sum(0).clamp(max=self.k))

    def emit_own(self, run: Tensor, verdicts: Tensor, out: MergeResult) -> None:
        """Write this rank's winners and what is certified.

        Args:
            run: int64 (rows, K), this rank's.
            verdicts: int64 (rows,) as of `ops.verdicts`; a length of K means all that is valid.
            out: Overwritten.
        """
        lengths, certified = ops.read_verdicts(verdicts)
        valid = ops.count_ge(run[None], PAD + 1)
        self.emit(run[None], valid.minimum(lengths), out)
        out.certified.copy_(certified)

    def emit_all(self, run: Tensor, out: MergeResult) -> None:
        """Write this rank's whole run int64 (rows, K), where every candidate is known to win."""
        self.emit_own(run, run.new_full((out.rows,), self.k), out)


class Strategy(ABC):
    """Moves and selects one chunk of rows at a time.

    A chunk's life: the merge packs sorted runs into `run`, then calls `merge`, on every rank alike.
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
        """Return the int64 (rows, K) view of the scratch where this rank's runs belong."""

    @abstractmethod
    def merge(self, scratch: Sequence[Tensor], out: MergeResult) -> None:
        """Exchange the chunk whose runs are packed, and write its rows to ``out``."""


def select(runs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the winning prefixes int64 (p, rows) of whole runs (p, rows, K), and certificates."""
    lengths = ops.prefix_lengths(runs, k)
    return lengths, ops.certify(runs, ops.threshold(runs, lengths, k))
