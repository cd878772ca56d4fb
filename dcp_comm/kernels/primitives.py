"""What every way to run the merge's arithmetic can do; strategies are written in these words.

A *list* is a row's K keys of one rank (`dcp_comm.topk.keys`), in any order, padding included; a
*run* is a list in descending order. Those of p ranks are int64 (p, rows, n), rank-major as an
all-gather leaves them. The winners of a rank are a prefix of its run, so that selecting from runs
means finding p prefix lengths a row.
Shapes never depend on data, nothing is read back to the host, and all work is enqueued on the
current stream. Equal inputs give equal bits, whichever way runs them: of keys that
`dcp_comm.topk.keys.encode` makes. Of others, which a peer may send, nobody writes out of bounds.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from dcp_comm.kernels.lemma import SplitterShape
from dcp_comm.sharding import Shard


@dataclass(frozen=True, eq=False)
class BlockTable:
    """Where the pages of a paged cache lie, and which rows are whose.

    Attributes:
        pages: int32 (R, pages), any strides.
        requests: Integer (rows,), each row's request; None where every row has its own.
        page_size: Tokens a page.
    """

    pages: Tensor
    requests: Tensor | None
    page_size: int

    def part(self, rows: slice) -> "BlockTable":
        """Return the table for some of the rows."""
        if self.requests is None:
            return replace(self, pages=self.pages[rows])
        return replace(self, requests=self.requests[rows])


@dataclass(eq=False, slots=True)
class Emission:
    """Where the winners of some rows are written, and how.

    Made once a chunk, where each microsecond counts: a frozen one would cost three times as much.

    Attributes:
        ids: int32 (rows, K), any row stride, overwritten: winners, then -1.
        counts: int32 (rows,), overwritten: winners of each row.
        certified: bool (rows,), overwritten.
        uncertified: int64 scalar; rows that are not certified are added.
        by_position: Ascending by id; otherwise descending by key.
        shard: Whose local positions to write; None for global ids.
        table: Turns local positions into slots; None to leave them.
        tail: Whether ids behind the winners have to be -1; they may be if not.
    """

    ids: Tensor
    counts: Tensor
    certified: Tensor
    uncertified: Tensor
    by_position: bool
    shard: Shard | None
    table: BlockTable | None
    tail: bool = True

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.counts.shape[0]


class Splitters(NamedTuple):
    """Where the splitters of packed runs are written.

    Attributes:
        keys: int64 (rows, m), contiguous: each ``block``-th key of a run, and its last.
        block: Keys between two splitters, B.
    """

    keys: Tensor
    block: int

    def part(self, rows: slice) -> "Splitters":
        """Return those of some rows."""
        return self._replace(keys=self.keys[rows])


class Primitives(ABC):
    """One way to run the merge's arithmetic.

    Attributes:
        name: Of this way.
        why: Why it was chosen.
    """

    name: ClassVar[str]
    why: str

    @abstractmethod
    def prepare(self) -> None:
        """Compile and load all that merges may need, so that none of them meets the compiler."""

    @abstractmethod
    def pack(
        self,
        run: Tensor,
        scores: Tensor,
        ids: Tensor,
        lengths: Tensor | None,
        *,
        shard: Shard,
        mask_neg_inf: bool,
        ordered: bool = True,
        splitters: Splitters | None = None,
    ) -> None:
        """Write one rank's candidates as runs; as lists in the same order if not ``ordered``.

        Args:
            run: int64 (rows, K), overwritten.
            scores: float32 (rows, K), any order and row stride.
            ids: int32 (rows, K), any row stride: local positions; below 0 is padding.
            lengths: Integer (rows,), local lengths: positions at or beyond them are padding.
            shard: What makes local positions global ids.
            mask_neg_inf: Whether -inf is padding too.
            ordered: Whether runs are wanted.
            splitters: Overwritten; None if nobody wants them, as of lists.
        """

    @abstractmethod
    def pack_logits(
        self,
        run: Tensor,
        logits: Tensor,
        ids: Tensor,
        row_starts: Tensor | None,
        lengths: Tensor | None,
        *,
        shard: Shard,
        mask_neg_inf: bool,
        ordered: bool = True,
        splitters: Splitters | None = None,
    ) -> None:
        """`pack`, with the scores looked up in logits (rows, width), float of up to 32 bits.

        A score stands in column ``id + row_start``; an id whose column does not exist is padding.
        """

    @abstractmethod
    def merge_runs(self, runs: Tensor, own: int | None, to: Emission) -> None:
        """Write the K largest keys of whole runs, with certificates.

        Args:
            runs: int64 (p, rows, K).
            own: The one run whose winners are written; None for those of all.
            to: Overwritten.
        """

    @abstractmethod
    def merge_sealed(self, runs: Tensor, ids: Tensor, *, by_position: bool) -> None:
        """Write the global ids of the K largest keys, with certificates inside.

        A certified row that is full is marked: its last id becomes ``-2 - id``. A row with padding
        at its end needs no mark: it holds every valid candidate. The one id without a partner is
        the largest, whose row passes for uncertified.

        Args:
            runs: int64 (p, rows, K).
            ids: int32 (rows, K), overwritten.
            by_position: As in `Emission`.
        """

    @abstractmethod
    def select(self, lists: Tensor, own: int | None, to: Emission) -> None:
        """Write the K largest keys of whole lists, with certificates: `merge_runs` of them, sorted.

        Args:
            lists: int64 (p, rows, K), may be overwritten.
            own: The one list whose winners are written, which are those that ``to.shard`` owns;
                None for those of all, as global ids.
            to: Overwritten.
        """

    @abstractmethod
    def select_sealed(self, lists: Tensor, ids: Tensor, *, by_position: bool) -> None:
        """Write what `merge_sealed` would of the lists, sorted; they may be overwritten."""

    @abstractmethod
    def unseal(self, ids: Tensor, to: Emission) -> None:
        """Write what `merge_sealed` left in ids int32 (rows, K) to ``to``, in the same order."""

    @abstractmethod
    def settle(self, runs: Tensor, verdicts: Tensor) -> None:
        """Write how long a prefix of each whole run wins.

        Args:
            runs: int64 (p, rows, K).
            verdicts: int64 (p, rows), overwritten: the length, ``~length`` where the row is not
                certified.
        """

    @abstractmethod
    def open_windows(
        self, splitters: Tensor, starts: Tensor, own: int | None, shape: SplitterShape
    ) -> None:
        """Write where the windows of open winners begin.

        Args:
            splitters: int64 (p, rows, m). The first of run 0 becomes the t-th largest of its row,
                which `close_windows` needs, unless t is 0; a last one only where m is 1.
            starts: int64 (p, rows), or (1, rows) for run ``own`` alone; overwritten. K where every
                valid key wins.
            own: The run whose start is wanted; None for all.
            shape: Sizes of the lemma.
        """

    @abstractmethod
    def copy_windows(self, windows: Tensor, run: Tensor, starts: Tensor) -> None:
        """Write the W keys of each run from ``starts`` on to (rows, W), none from outside it."""

    @abstractmethod
    def close_windows(
        self,
        splitters: Tensor,
        windows: Tensor,
        answers: Tensor,
        own: int | None,
        shape: SplitterShape,
    ) -> None:
        """Write how long a prefix of each run wins, from all that was exchanged.

        Args:
            splitters: int64 (p, rows, m), as `open_windows` left them.
            windows: int64 (p, rows, W).
            answers: Starts, as `open_windows` wrote them; overwritten by verdicts, as in `settle`,
                of K or more where all that is valid wins.
            own: As in `open_windows`.
            shape: As in `open_windows`.
        """

    @abstractmethod
    def emit_own(self, run: Tensor, verdicts: Tensor | None, to: Emission) -> None:
        """Write this rank's winners, a prefix of its run.

        Args:
            run: int64 (rows, K).
            verdicts: int64 (rows,) as of `settle`; None where all that is valid wins, certified.
            to: Overwritten.
        """
