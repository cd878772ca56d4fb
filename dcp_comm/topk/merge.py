"""The exact top-K across ranks.

1. Every rank makes the same `TopKMerge`; ``prepare()`` verifies that, collectively.
2. Reserve ``specs()``, together with whatever must stay alive beside them.
3. ``merge(scores, ids, lengths, ...)`` for rows at hand, or ``begin(rows)``, ``pack`` segment by
   segment, ``finish()``. Every rank merges the same rows, also one that owns no token of them.

=========  ===============  =========  =====================================================
tensor     shape            dtype      meaning
=========  ===============  =========  =====================================================
scores     (T, K)           float32    of this rank's local top-K, any order
ids        (T, K)           int32      their local positions, -1 where there is none
lengths    (T,)             int32/64   local lengths: what lies at or beyond is padding
result     see `MergeResult`           the caller's, never in scratch
=========  ===============  =========  =====================================================

The order is `dcp_comm.topk.keys`: score descending, then global id ascending. If every rank's local
top-K keeps that order too, the result equals the unsharded top-K bit for bit; if not, it still does
on every certified row. Global ids are int32: a token at or beyond position 2^31 never wins.
"""

import hashlib
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.checks import check_int
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommMismatch, refusal
from dcp_comm.sharding import Shard
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.arguments import Refuse
from dcp_comm.topk.gather import Gather
from dcp_comm.topk.job import MergeJob
from dcp_comm.topk.result import MergeResult
from dcp_comm.topk.strategy import Problem, Strategy
from dcp_comm.workspace import Workspace, WorkspaceSlot

STRATEGIES: dict[str, type[Strategy]] = {"gather": Gather}
ORDERS = ("score", "position")


class TopKMerge:
    """Merges the ranks' local top-K into the exact global one, in memory you reserved.

    Args:
        comm: The ranks among which the tokens are dealt.
        k: Winners a row, and local candidates a rank and row; at least 1.
        max_rows: Most rows of one merge.
        interleave: Consecutive tokens dealt to a rank at a time.
        strategy: How candidates travel: ``gather``, or ``auto`` to choose.
        output: ``global``: every rank gets all K global ids; ``local``: each rank the winners it
            owns, as local positions.
        order: ``score``: score descending, then id; ``position``: id ascending.
        mask_neg_inf: Whether a score of -inf means masked, so that it never wins.
        chunk_rows: Rows exchanged at a time; None for the strategy's default, at most max_rows.
        options: Must be None: ``gather`` has nothing to set.
        link: Must be None: with one strategy there is nothing to choose by the link.
        shard_rank: This rank's place in the KV interleave; None for ``comm.rank``.

    Raises:
        CommArgumentError: An argument is not as above. Construction sends nothing.
    """

    def __init__(
        self,
        comm: Communicator,
        k: int,
        max_rows: int,
        interleave: int = 1,
        strategy: str = "auto",
        output: str = "global",
        order: str = "score",
        mask_neg_inf: bool = True,
        chunk_rows: int | None = None,
        options: None = None,
        link: None = None,
        shard_rank: int | None = None,
    ) -> None:
        """Check the options and choose the strategy."""
        refuse = Refuse("TopKMerge", comm.device, comm.where)
        check_int("TopKMerge", "k", k, 1)
        check_int("TopKMerge", "max_rows", max_rows, 1)
        refuse.unless_one_of("strategy", strategy, ("auto", *STRATEGIES))
        chosen = STRATEGIES["gather" if strategy == "auto" else strategy]
        refuse.unless_one_of("output", output, chosen.outputs)
        refuse.unless_one_of("order", order, ORDERS)
        refuse.unless_one_of("mask_neg_inf", mask_neg_inf, (True, False))
        refuse.unless_none("options", options)
        refuse.unless_none("link", link)
        place = comm.rank if shard_rank is None else shard_rank
        check_int("TopKMerge", "shard_rank", place, 0, comm.size - 1)
        check_int("TopKMerge", "interleave", interleave, 1)
        shard = Shard(place, comm.size, interleave)
        self._problem = Problem(comm, k, output, order, shard, mask_neg_inf)
        self._strategy = chosen(self._problem)
        self._why = "the only strategy" if strategy == "auto" else "asked for"
        chunk_rows = self._strategy.default_chunk_rows if chunk_rows is None else chunk_rows
        check_int("TopKMerge", "chunk_rows", chunk_rows, 1)
        self._max_rows = max_rows
        self._chunk_rows = min(max_rows, chunk_rows)
        self._prepared = False
        self._job: weakref.ref[MergeJob] | None = None

    def __repr__(self) -> str:
        """Return the options."""
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"TopKMerge({options})"

    def specs(self) -> tuple[BufferSpec, ...]:
        """Return the scratch of any merge of up to max_rows rows."""
        return self._strategy.specs(self._chunk_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of `specs`, without alignment."""
        return sum(spec.nbytes for spec in self.specs())

    def explain(self) -> str:
        """Return the strategy and why, what it moves, and in what memory."""
        return (
            f"{self._strategy.name} ({self._why}): {self._strategy.explain()};"
            f" chunks of {self._chunk_rows} rows, {self.nbytes} bytes of scratch"
        )

    def prepare(self) -> None:
        """Agree on every option with the other ranks; collective, done by the first merge if not.

        Raises:
            CommMismatch: Ranks differ in an option, or two claim one place in the interleave.
        """
        comm = self._problem.comm
        place = {"shard_rank": self._problem.shard.rank}
        told = comm.agree("TopKMerge", self._options, local=place)
        places = [each["shard_rank"] for each in told]
        if len(set(places)) < comm.size:
            need = "another place in the interleave for every rank"
            text = refusal("TopKMerge.prepare", "shard_rank", places, need, where=comm.where)
            raise CommMismatch(text)
        comm.barrier()
        self._prepared = True

    def begin(
        self,
        rows: int,
        scratch: Sequence[Tensor] | None = None,
        workspace: Workspace | WorkspaceSlot | None = None,
        out: MergeResult | None = None,
        longest: int | None = None,
    ) -> MergeJob:
        """Begin a merge whose rows come in segments; an unfinished one is given up.

        Args:
            rows: Rows in all, the same on every rank; at most max_rows.
            scratch: Views of `specs`, taken together with whatever must stay alive; the merge may
                overwrite them until it is finished. None to take them from ``workspace``, or to
                allocate.
            workspace: Where to take `specs` from, for a caller that keeps nothing else there.
            out: Where to write, exactly ``rows`` rows; ``out.ids`` may be the buffer that holds the
                local ids. None to allocate.
            longest: Longest global length of the rows, the same on every rank. At most K, every
                token wins: then output ``local`` exchanges nothing. Output ``global`` needs the
                others' tokens all the same.

        Raises:
            CommArgumentError: An argument is not as above; nothing was sent.
            WorkspaceExhausted: The workspace is locked and too small; nothing was sent.
            CommMismatch: Ranks differ in an option or in what they are about to merge.
        """
        return self._begin(self._refuse("begin"), rows, scratch, workspace, out, longest)

    def __call__(
        self,
        scores: Tensor,
        ids: Tensor,
        lengths: Tensor | None = None,
        scratch: Sequence[Tensor] | None = None,
        workspace: Workspace | WorkspaceSlot | None = None,
        out: MergeResult | None = None,
    ) -> MergeResult:
        """Merge rows that are all at hand: `begin`, `MergeJob.pack`, `MergeJob.finish`."""
        refuse = self._refuse("__call__")
        refuse.unless_candidates(scores, ids, lengths, self._problem.k)
        rows, inputs = ids.shape[0], (scores, ids, lengths)
        job = self._begin(refuse, rows, scratch, workspace, out, None, *inputs)
        job.pack(*inputs)
        return job.finish()

    def _begin(
        self,
        refuse: Refuse,
        rows: int,
        scratch: Sequence[Tensor] | None,
        workspace: Workspace | WorkspaceSlot | None,
        out: MergeResult | None,
        longest: int | None,
        *inputs: Tensor | None,
    ) -> MergeJob:
        """Refuse what is wrong here, then tell the other ranks, then start."""
        comm, k = self._problem.comm, self._problem.k
        check_int("TopKMerge.begin", "rows", rows, 0)
        if rows > self._max_rows:
            raise refuse(
                "rows", rows, f"at most max_rows = {self._max_rows}", "Merge them in parts"
            )
        if longest is not None:
            check_int("TopKMerge.begin", "longest", longest, 0)
        out = MergeResult.allocate(rows, k, comm.device) if out is None else out
        refuse.unless_result(out, rows, k)
        views = self._scratch(refuse, scratch, workspace)
        refuse.if_overlapping(views, out.ids, out.counts, out.certified, *inputs)
        if not self._prepared:
            self.prepare()
        comm.announce("merge", rows=rows, longest=longest, options=self._fingerprint)
        keeps_all = self._problem.output == "local" and longest is not None and longest <= k
        return self._replace(MergeJob(self._strategy, self._chunk_rows, views, out, not keeps_all))

    def _scratch(
        self,
        refuse: Refuse,
        scratch: Sequence[Tensor] | None,
        workspace: Workspace | WorkspaceSlot | None,
    ) -> Sequence[Tensor]:
        """Return the views of `specs` that the caller gave, or take or allocate them."""
        if scratch is not None and workspace is not None:
            raise refuse("workspace", "scratch as well", "one of them")
        if workspace is not None:
            scratch = workspace.take(*self.specs())
        if scratch is None:
            device = self._problem.comm.device
            return [torch.empty(s.shape, dtype=s.dtype, device=device) for s in self.specs()]
        refuse.unless_scratch(scratch, self.specs())
        return scratch

    def _replace(self, job: MergeJob) -> MergeJob:
        """Give up the job before this one."""
        previous = self._job() if self._job else None
        if previous:
            previous.supersede()
        self._job = weakref.ref(job)
        return job

    def _refuse(self, operation: str) -> Refuse:
        comm = self._problem.comm
        return Refuse(f"TopKMerge.{operation}", comm.device, comm.where)

    @property
    def _options(self) -> dict[str, object]:
        """What every rank must have set alike."""
        return {
            "k": self._problem.k,
            "max_rows": self._max_rows,
            "interleave": self._problem.shard.interleave,
            "strategy": self._strategy.name,
            "output": self._problem.output,
            "order": self._problem.order,
            "mask_neg_inf": self._problem.mask_neg_inf,
            "chunk_rows": self._chunk_rows,
        }

    @property
    def _fingerprint(self) -> str:
        return hashlib.sha256(repr(self._options).encode()).hexdigest()[:16]
