"""Strategy "owner": each row is merged by the one rank that owns it.

Rows are dealt to owners, ``d = ceil(rows / p)`` each. An all-to-all takes the runs there; then ids
come back by all-gather (output "global"), or to each rank the length of its winning prefix.

========  ==========================  =============================
output    bytes received a dealt row  bytes of scratch
========  ==========================  =============================
global    ``(p - 1) * 12 * K``        ``20 * K * p * d``
local     ``(p - 1) * (8 * K + 8)``   ``(16 * K + 16) * p * d``
========  ==========================  =============================
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.kernels import torch_ops as ops
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.keys import PAD
from dcp_comm.topk.result import MergeResult
from dcp_comm.topk.strategy import Problem, Strategy, select
from dcp_comm.topk.transport import Owners, cut


class Owner(Strategy):
    """All-to-all of the runs; the fewest bytes that give every rank all ids."""

    name = "owner"
    outputs = ("global", "local", "slots")

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._owners = Owners(problem.comm)

    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Runs sent, runs received, and what comes back: all winners or own lengths."""
        owners, k = self._owners, self.problem.k
        runs = owners.key_specs("runs", rows, k)
        if self.problem.output == "global":
            return *runs, BufferSpec("winners", (owners.padded(rows), k), torch.int32)
        return *runs, *owners.answer_specs(rows)

    def run(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """What is sent, without the padding."""
        return self._owners.lay(iter(scratch), rows, self.problem.k)[0][:rows]

    def merge(self, scratch: Sequence[Tensor], out: MergeResult) -> None:
        """Deal the rows, merge those owned, tell the others."""
        owners, problem = self._owners, self.problem
        buffers = iter(scratch)
        run, runs = owners.lay(buffers, out.rows, problem.k)
        run[out.rows :] = PAD
        owners.collect(runs, run)
        lengths, certified = select(runs, problem.k)
        if problem.output == "global":
            self._tell_all(next(buffers), runs, lengths, certified, out)
            return
        own = owners.deliver(tuple(buffers), ops.verdicts(lengths, certified))
        problem.emit_own(run[: out.rows], own[: out.rows], out)

    def _tell_all(
        self, buffer: Tensor, runs: Tensor, lengths: Tensor, certified: Tensor, out: MergeResult
    ) -> None:
        """Gather the ids of all owners' rows, in place, with the certificate inside."""
        comm = self.problem.comm
        winners = cut(buffer, comm.size, *runs.shape[1:])
        owned = winners[comm.rank]
        self.problem.emit_ids(owned, runs, lengths)
        ops.seal(owned, certified)
        comm.all_gather_into(winners, owned)
        out.ids.copy_(winners.flatten(0, 1)[: out.rows])
        out.certified.copy_(ops.unseal(out.ids))
        out.counts.copy_(ops.count_ge(out.ids[None], 0)[0])
