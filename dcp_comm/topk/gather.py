"""Strategy "gather": every rank receives every rank's candidates, in one round.

Each row receives ``(p - 1) * 8 * K`` bytes; scratch is ``p * 8 * chunk_rows * K`` bytes. This rank
packs into its own slot of the receive buffer, the all-gather works in place, and selection reads
the buffer as it arrives.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.kernels import torch_ops as ops
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.result import MergeResult
from dcp_comm.topk.strategy import Strategy


class Gather(Strategy):
    """All-gather of the runs; fewest rounds, so the best for few rows."""

    name = "gather"
    outputs = ("global", "local")
    default_chunk_rows = 1024

    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """One buffer: the runs of all ranks, rank-major."""
        shape = (self.problem.comm.size, rows, self.problem.k)
        return (BufferSpec("gathered", shape, torch.int64),)

    def run(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """This rank's slot of the buffer."""
        return self._runs(scratch, rows)[self.problem.comm.rank]

    def merge(self, scratch: Sequence[Tensor], out: MergeResult) -> None:
        """Gather in place, find the winning prefixes, write them."""
        problem = self.problem
        runs = self._runs(scratch, out.rows)
        problem.comm.all_gather_into(runs, runs[problem.comm.rank])
        lengths = ops.prefix_lengths(runs, problem.k)
        out.certified.copy_(ops.certify(runs, ops.threshold(runs, lengths, problem.k)))
        mine = problem.comm.rank
        kept = slice(mine, mine + 1) if problem.output == "local" else slice(None)
        problem.emit(runs[kept], lengths[kept], out)

    def explain(self) -> str:
        """One all-gather."""
        received = (self.problem.comm.size - 1) * 8 * self.problem.k
        return f"one in-place all-gather of sorted candidates, {received} bytes received a row"

    def _runs(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """The buffer's first bytes as (p, rows, K), so that a short chunk is contiguous too."""
        size, k = self.problem.comm.size, self.problem.k
        return scratch[0].view(-1)[: size * rows * k].view(size, rows, k)
