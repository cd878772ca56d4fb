"""A merge job whose result is given out only after all ranks have confirmed how it came about."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommUsageError
from dcp_comm.poison import poison
from dcp_comm.topk.job import MergeJob
from dcp_comm.topk.result import MergeResult


@dataclass(frozen=True)
class Guard:
    """What watches over one job.

    Attributes:
        comm: Whose ranks merge.
        out: The job's result.
        scratch: The job's scratch.
        exchanges: Whether the job exchanges anything if it has rows; the same on every rank.
    """

    comm: Communicator
    out: MergeResult
    scratch: Sequence[Tensor]
    exchanges: bool

    @contextmanager
    def watching(self) -> Iterator[None]:
        """In debug mode, leave nothing plausible in a result whose job has failed."""
        try:
            yield
        except (CommArgumentError, CommUsageError):
            raise
        except BaseException:
            if self.comm.debug:
                poison(self.out.ids, self.out.counts, self.out.certified, *self.scratch)
            raise

    def conclude(self) -> None:
        """Have every rank confirm that it made the same calls."""
        if self.exchanges and self.out.rows:
            self.comm.conclude()


class GuardedJob(MergeJob):
    """A `MergeJob` under a `Guard`.

    Args:
        guard: Watches over it.
        job: What a `MergeJob` is made of.
    """

    def __init__(self, guard: Guard, *job: object) -> None:
        super().__init__(*job)  # type: ignore[arg-type]
        self._guard = guard
        if guard.comm.debug:
            poison(*guard.scratch)

    def pack(self, scores: Tensor, ids: Tensor, lengths: Tensor | None = None) -> None:
        """Take the next rows, as `MergeJob.pack` does."""
        with self._guard.watching():
            super().pack(scores, ids, lengths)

    def pack_logits(
        self,
        logits: Tensor,
        ids: Tensor,
        row_starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None:
        """Take the next rows, as `MergeJob.pack_logits` does."""
        with self._guard.watching():
            super().pack_logits(logits, ids, row_starts, lengths)

    def finish(self) -> MergeResult:
        """Return the result, once all ranks have confirmed that it is one.

        Raises:
            CommUsageError: Rows are missing (the job lives on), or the job has ended.
            CommMismatch, CommTimeout: Another rank made other calls, where ``DCP_COMM_CHECK`` has
                them compared.
        """
        with self._guard.watching():
            result = super().finish()
            self._guard.conclude()
            return result
