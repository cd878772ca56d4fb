"""Strategy "owner": each row is merged by the one rank that owns it.

Rows are dealt to owners, ``d = ceil(rows / p)`` each. An all-to-all takes their keys there; then
ids come back by all-gather (output "global"), or to each rank the length of its winning prefix.

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

from dcp_comm.kernels.primitives import Emission
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.keys import PAD
from dcp_comm.topk.strategy import Problem, Strategy
from dcp_comm.topk.transport import Owners, cut, first


class Owner(Strategy):
    """All-to-all of the runs, or lists; the fewest bytes that give every rank all ids."""

    name = "owner"
    outputs = ("global", "local", "slots")

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._owners = Owners(problem.comm)

    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """Keys sent, keys received, and what comes back: all winners or own lengths."""
        owners, k = self._owners, self.problem.k
        runs = owners.key_specs("runs", rows, k)
        if self.problem.output == "global":
            return *runs, BufferSpec("winners", (owners.padded(rows), k), torch.int32)
        return *runs, *owners.answer_specs(rows)

    def run(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """What is sent, without the padding."""
        return first(self._owners.lay(iter(scratch), rows, self.problem.k)[0], rows)

    def takes_lists(self, rows: int) -> bool:
        """If all winners are wanted; else owners tell how long prefixes win."""
        return self.problem.selects_lists and self.problem.output == "global"

    def merge(self, scratch: Sequence[Tensor], to: Emission) -> None:
        """Deal the rows, merge those owned, tell the others."""
        owners, problem = self._owners, self.problem
        buffers = iter(scratch)
        run, runs = owners.lay(buffers, to.rows, problem.k)
        if owners.padded(to.rows) > to.rows:
            run[to.rows :].fill_(PAD)
        owners.collect(runs, run)
        if problem.output == "global":
            self._tell_all(next(buffers), runs, to)
            return
        answers = owners.answers(tuple(buffers), to.rows)
        problem.kernels.settle(runs, answers.given)
        verdicts = owners.deliver(answers)
        problem.kernels.emit_own(first(run, to.rows), first(verdicts, to.rows), to)

    def _tell_all(self, buffer: Tensor, runs: Tensor, to: Emission) -> None:
        """Gather the ids of all owners' rows, in place, with the certificate inside."""
        problem, comm = self.problem, self.problem.comm
        winners = cut(buffer, comm.size, *runs.shape[1:])
        owned = winners[comm.rank]
        lists = self.takes_lists(to.rows)
        merge = problem.kernels.select_sealed if lists else problem.kernels.merge_sealed
        merge(runs, owned, by_position=to.by_position)
        comm.all_gather_into(winners, owned)
        problem.kernels.unseal(first(winners.flatten(0, 1), to.rows), to)
