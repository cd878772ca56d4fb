"""One merge under way: rows come in segments of any size, chunks leave as soon as they are full."""

from collections.abc import Callable, Sequence

from torch import Tensor

from dcp_comm.errors import CommArgumentError, CommUsageError, refusal
from dcp_comm.kernels.primitives import BlockTable
from dcp_comm.poison import poison
from dcp_comm.topk.arguments import Refuse
from dcp_comm.topk.result import MergeResult
from dcp_comm.topk.strategy import Strategy


class MergeJob:
    """What `TopKMerge.begin` returns: `pack` every row in order, then `finish`.

    Chunk i covers ``min(chunk_rows, rows - i * chunk_rows)`` rows, however the segments fall. Its
    rows are written to the result after all of them were packed, so that the result's ids may be
    the very buffer that holds the local ids.
    """

    def __init__(
        self,
        strategy: Strategy,
        chunk_rows: int,
        scratch: Sequence[Tensor],
        out: MergeResult,
        exchange: bool,
        table: BlockTable | None,
        uncertified: Tensor,
    ) -> None:
        """Start at row 0; `TopKMerge.begin` has checked everything."""
        self._strategy = strategy
        self._problem = strategy.problem
        self._comm = strategy.problem.comm
        self._chunk_rows = chunk_rows
        self._scratch = scratch
        self._out = out
        self._exchange = exchange
        self._table = table
        self._uncertified = uncertified
        self._packed = 0
        self._ended = ""
        if self._comm.debug:
            poison(*scratch)

    def pack(self, scores: Tensor, ids: Tensor, lengths: Tensor | None = None) -> None:
        """Take the next rows' local top-K.

        Args:
            scores: float32 (n, K), any row stride. NaN is padding, and -inf if masked.
            ids: int32 (n, K), any row stride: local positions in any order; below 0 is padding.
                A position listed twice in a row may win twice.
            lengths: int32 or int64 (n,), local lengths: positions at or beyond are padding.

        Raises:
            CommArgumentError: An argument is not as above, lies in the scratch, or brings more rows
                than were announced; nothing was packed and the job lives on.
            CommUsageError: The job has ended.
        """
        refuse = self._refuse("pack")
        refuse.unless_candidates(scores, ids, lengths, self._problem.k)
        self._feed(refuse, self._problem.kernels.pack, scores, ids, lengths)

    def pack_logits(
        self,
        logits: Tensor,
        ids: Tensor,
        row_starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> None:
        """Take the next rows' local top-K, with the scores still in the logits.

        Args:
            logits: float32, bfloat16 or float16 (n, N), any row stride.
            ids: As in `pack`. A position's score stands in column ``id + row_start``; where there
                is no such column it is padding.
            row_starts: int32 or int64 (n,), the column of each row's position 0; None for 0.
            lengths: As in `pack`.

        Raises:
            CommArgumentError: As in `pack`.
            CommUsageError: The job has ended.
        """
        refuse = self._refuse("pack_logits")
        refuse.unless_logits(logits, ids, row_starts, lengths, self._problem.k)
        self._feed(refuse, self._problem.kernels.pack_logits, logits, ids, row_starts, lengths)

    def finish(self) -> MergeResult:
        """Return the result, which is the caller's, once all ranks have confirmed that it is one.

        Raises:
            CommUsageError: Rows are missing (the job lives on), or the job has ended.
            CommMismatch, CommTimeout: Another rank made other calls, where ``DCP_COMM_CHECK`` has
                them compared.
        """
        self._refuse("finish")
        if self._packed < self._out.rows:
            got, need = f"{self._packed} packed", f"all {self._out.rows} that begin() announced"
            raise self._misuse("finish", "rows", got, need)
        self._ended = "finish() was called"
        try:
            if self._exchange and self._out.rows:
                self._comm.conclude()
        except BaseException as error:
            self._spoil(error)
            raise
        return self._out

    def supersede(self) -> None:
        """End the job because its merge begins another; rows of unfinished chunks are dropped."""
        self._ended = self._ended or "a later begin() superseded it"

    def _refuse(self, operation: str) -> Refuse:
        """Refuse a job that has ended; return what words the other refusals."""
        if self._ended:
            raise self._misuse(operation, "job", f"one that has ended: {self._ended}", "a live job")
        return Refuse(f"MergeJob.{operation}", self._comm.device, self._comm.where)

    def _misuse(self, operation: str, argument: str, got: str, need: str) -> CommUsageError:
        where = self._comm.where
        return CommUsageError(refusal(f"MergeJob.{operation}", argument, got, need, where=where))

    def _feed(self, refuse: Refuse, pack: Callable[..., None], *columns: Tensor | None) -> None:
        """Pack a segment piece by piece, each up to a chunk's border at most."""
        rows = next(column.shape[0] for column in columns if column is not None)
        if self._packed + rows > self._out.rows:
            got = f"{rows} rows after {self._packed}"
            raise refuse("ids", got, f"{self._out.rows} in all, as begin() was told")
        refuse.if_overlapping(self._scratch, *columns)
        self._ended = "an earlier pack failed"
        try:
            done = 0
            while done < rows:
                count = min(rows - done, self._chunk.stop - self._packed)
                piece = columns if count == rows else _rows(columns, slice(done, done + count))
                self._pack(pack, count, piece)
                done += count
        except BaseException as error:
            self._spoil(error)
            raise
        self._ended = ""

    def _spoil(self, error: BaseException) -> None:
        """In debug mode, leave nothing plausible in a result whose job fails."""
        if self._comm.debug and not isinstance(error, CommArgumentError | CommUsageError):
            out = self._out
            poison(out.ids, out.counts, out.certified, *self._scratch)

    @property
    def _chunk(self) -> slice:
        """The rows of the chunk that the next row belongs to."""
        first = self._packed // self._chunk_rows * self._chunk_rows
        return slice(first, min(first + self._chunk_rows, self._out.rows))

    def _pack(
        self, pack: Callable[..., None], count: int, columns: Sequence[Tensor | None]
    ) -> None:
        """Pack rows of one chunk; the row that fills it sends it."""
        chunk, problem = self._chunk, self._problem
        rows = chunk.stop - chunk.start
        run = mine = self._strategy.run(self._scratch, rows)
        splitters = self._strategy.splitters(self._scratch, rows)
        if count < rows:
            part = slice(self._packed - chunk.start, self._packed - chunk.start + count)
            mine, splitters = run[part], None if splitters is None else splitters.part(part)
        options = {"shard": problem.shard, "mask_neg_inf": problem.mask_neg_inf}
        ordered = not (self._exchange and self._strategy.takes_lists(rows))
        pack(mine, *columns, **options, ordered=ordered, splitters=splitters)
        self._packed += count
        if self._packed < chunk.stop:
            return
        table = None if self._table is None else self._table.part(chunk)
        to = problem.emission(self._out.part(chunk), self._uncertified, table)
        if self._exchange:
            self._strategy.merge(self._scratch, to)
        else:
            problem.kernels.emit_own(run, None, to)


def _rows(columns: Sequence[Tensor | None], rows: slice) -> list[Tensor | None]:
    return [None if each is None else each[rows] for each in columns]
