"""Strategy "gather": every rank receives every rank's candidates, in one round.

A row receives ``(p - 1) * 8 * K`` bytes; scratch is ``p * 8 * K * rows`` bytes. This rank packs
into its own slot of the receive buffer, the all-gather works in place, and selection reads the
buffer as it arrives.
"""

from collections.abc import Sequence

from torch import Tensor

from dcp_comm.kernels.primitives import Emission
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.cost import FEW_ROWS
from dcp_comm.topk.strategy import Problem, Strategy
from dcp_comm.topk.transport import Everyone


class Gather(Strategy):
    """All-gather of the runs, or lists; fewest rounds, so the best for few rows."""

    name = "gather"
    outputs = ("global", "local", "slots")

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._everyone = Everyone(problem.comm)

    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """One buffer: what all ranks have, rank-major."""
        return self._everyone.key_specs("gathered", rows, self.problem.k)

    def run(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """This rank's slot of the buffer."""
        return self._everyone.lay(iter(scratch), rows, self.problem.k)[0]

    def takes_lists(self, rows: int) -> bool:
        """If all winners are wanted; or few rows', of which to sort them is the larger part."""
        problem = self.problem
        return problem.selects_lists and (problem.output == "global" or rows <= FEW_ROWS)

    def merge(self, scratch: Sequence[Tensor], to: Emission) -> None:
        """Gather in place, write the winners."""
        problem = self.problem
        run, runs = self._everyone.lay(iter(scratch), to.rows, problem.k)
        self._everyone.collect(runs, run)
        own = None if problem.output == "global" else problem.comm.rank
        kernels, lists = problem.kernels, self.takes_lists(to.rows)
        (kernels.select if lists else kernels.merge_runs)(runs, own, to)
