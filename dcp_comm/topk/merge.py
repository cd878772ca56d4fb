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
from dcp_comm.kernels.dispatch import primitives_for
from dcp_comm.kernels.primitives import BlockTable
from dcp_comm.sharding import Shard
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.arguments import Refuse
from dcp_comm.topk.choice import STRATEGIES, Choice, check_options, link_of
from dcp_comm.topk.job import MergeJob
from dcp_comm.topk.options import ORDERS, OUTPUTS, MergeOptions
from dcp_comm.topk.rates import Link
from dcp_comm.topk.result import MergeResult
from dcp_comm.topk.slots import checked_table
from dcp_comm.topk.strategy import Problem
from dcp_comm.workspace import Workspace, WorkspaceSlot


class TopKMerge:
    """Merges the ranks' local top-K into the exact global one, in memory you reserved.

    Args:
        comm: The ranks among which the tokens are dealt.
        k: Winners a row, and local candidates a rank and row; at least 1.
        max_rows: Most rows of one merge.
        interleave: Consecutive tokens dealt to a rank at a time.
        strategy: How candidates travel: ``gather``, ``owner``, ``splitter`` (not for output
            ``global``), or ``auto``: whichever the model of `dcp_comm.topk.cost` says is fastest
            for the rows at hand.
        output: ``global``: every rank gets all K global ids; ``local``: each rank the winners it
            owns, as local positions; ``slots``: the same as slots of its cache, by a block table.
        order: ``score``: score descending, then id; ``position``: id ascending.
        mask_neg_inf: Whether a score of -inf means masked, so that it never wins.
        chunk_rows: Rows exchanged at a time; None for the strategy's default, at most max_rows.
        options: Settings of single strategies and outputs.
        link: What connects the ranks, for ``auto``: ``nvlink``, ``pcie``, ``network``, a name of
            `dcp_comm.topk.measured.NAMED` or a `Link`; None for what
            `dcp_comm.topk.measured.link_between` has: figures of 2 GPUs, measured, the general
            ``nvlink`` for more of them, and ``network`` between CPUs.
        shard_rank: This rank's place in the KV interleave; None for ``comm.rank``.

    Attributes:
        comm: As given.
        uncertified: int64 scalar on the communicator's device: merged rows that were not
            certified, added up there as chunks are written and never read by the merge.

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
        options: MergeOptions | None = None,
        link: Link | str | None = None,
        shard_rank: int | None = None,
    ) -> None:
        """Check the options and choose the strategy."""
        refuse = Refuse("TopKMerge", comm.device, comm.where)
        check_int("TopKMerge", "k", k, 1)
        check_int("TopKMerge", "max_rows", max_rows, 1)
        refuse.unless_one_of("strategy", strategy, ("auto", *STRATEGIES))
        asked = STRATEGIES.get(strategy)
        refuse.unless_one_of("output", output, asked.outputs if asked else OUTPUTS)
        refuse.unless_one_of("order", order, ORDERS)
        refuse.unless_one_of("mask_neg_inf", mask_neg_inf, (True, False))
        if chunk_rows is not None:
            check_int("TopKMerge", "chunk_rows", chunk_rows, 1)
        options = MergeOptions() if options is None else options
        check_options(refuse, options, strategy, k)
        place = comm.rank if shard_rank is None else shard_rank
        check_int("TopKMerge", "shard_rank", place, 0, comm.size - 1)
        check_int("TopKMerge", "interleave", interleave, 1)
        shard = Shard(place, comm.size, interleave)
        kernels = primitives_for(comm.device, k, comm.size, options.block)
        self._problem = Problem(comm, k, kernels, output, order, shard, mask_neg_inf, options.tail)
        link = link_of(refuse, link, comm.device, comm.size)
        self._choice = Choice(self._problem, max_rows, strategy, chunk_rows, options, link)
        self._max_rows, self._page_size = max_rows, options.page_size
        self._options = {
            "k": k,
            "max_rows": max_rows,
            "interleave": interleave,
            "output": output,
            "order": order,
            "mask_neg_inf": mask_neg_inf,
            "tail": options.tail,
            **self._choice.agreed,
        }
        self._fingerprint = hashlib.sha256(repr(self._options).encode()).hexdigest()[:16]
        with torch.inference_mode(False):
            self.uncertified = torch.zeros((), dtype=torch.int64, device=comm.device)
        self.comm, self._prepared = comm, False
        self._job: weakref.ref[MergeJob] | None = None

    def __repr__(self) -> str:
        """Return the options."""
        options = ", ".join(f"{name}={value!r}" for name, value in self._options.items())
        return f"TopKMerge({options})"

    def specs(self) -> tuple[BufferSpec, ...]:
        """Return the scratch of any merge of up to max_rows rows.

        It is the strategy's, for its largest chunk; see the module of each for the formula. Where
        ``auto`` has several plans, it is one buffer in which the largest of them fits.
        """
        return self._choice.specs

    @property
    def nbytes(self) -> int:
        """Bytes of `specs`, without alignment."""
        return sum(spec.nbytes for spec in self.specs())

    def explain(self) -> str:
        """Return a line a plan: strategy and why, bytes, memory; then what does the arithmetic."""
        kernels = self._problem.kernels
        return f"{self._choice.explain()}\narithmetic by {kernels.name} ({kernels.why})"

    def prepare(self) -> None:
        """Agree on every option with the other ranks; collective, done by the first merge if not.

        On CUDA it also compiles its kernels, then exchanges padding once, in temporary scratch, so
        that the library below has connected for every plan; the ledger leaves that out.

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
        self._problem.kernels.prepare()
        if comm.device.type == "cuda":
            with comm.ledger.paused():
                self._choice.warm_up()
        comm.barrier()
        self._prepared = True

    def begin(
        self,
        rows: int,
        scratch: Sequence[Tensor] | None = None,
        workspace: Workspace | WorkspaceSlot | None = None,
        out: MergeResult | None = None,
        longest: int | None = None,
        block_table: Tensor | None = None,
        request_ids: Tensor | None = None,
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
                token wins: then only output ``global`` exchanges anything.
            block_table: For output ``slots``: int32 (R, pages), any row stride, of this rank's own
                cache. Local position j of request r lies in slot ``block_table[r, j // page_size] *
                page_size + j % page_size``; without such a page it is written as -1, and counted.
                Kept until the merge is finished.
            request_ids: int32 or int64 (rows,), each row's request; None where R is the number of
                rows. Kept likewise.

        Raises:
            CommArgumentError: An argument is not as above; nothing was sent.
            WorkspaceExhausted: The workspace is locked and too small; nothing was sent.
            CommMismatch: Ranks differ in an option or in what they are about to merge.
        """
        refuse = self._refuse("begin")
        table = self._table(refuse, rows, block_table, request_ids)
        return self._begin(refuse, rows, scratch, workspace, out, longest, table)

    def __call__(
        self,
        scores: Tensor,
        ids: Tensor,
        lengths: Tensor | None = None,
        scratch: Sequence[Tensor] | None = None,
        workspace: Workspace | WorkspaceSlot | None = None,
        out: MergeResult | None = None,
        block_table: Tensor | None = None,
        request_ids: Tensor | None = None,
    ) -> MergeResult:
        """Merge rows that are all at hand: `begin`, `MergeJob.pack`, `MergeJob.finish`."""
        refuse = self._refuse("__call__")
        refuse.unless_candidates(scores, ids, lengths, self._problem.k)
        rows, inputs = ids.shape[0], (scores, ids, lengths)
        table = self._table(refuse, rows, block_table, request_ids)
        job = self._begin(refuse, rows, scratch, workspace, out, None, table, *inputs)
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
        table: BlockTable | None,
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
        views = self._choice.scratch(refuse, scratch, workspace, comm.device)
        refuse.if_overlapping(views, out.ids, out.counts, out.certified, *inputs)
        if not self._prepared:
            self.prepare()
        comm.announce("merge", rows=rows, longest=longest, options=self._fingerprint)
        keeps_all = self._problem.output != "global" and longest is not None and longest <= k
        plan = self._choice.plan(rows)
        views, sends = self._choice.views(views, plan), not keeps_all
        return self._replace(
            MergeJob(plan.strategy, plan.chunk_rows, views, out, sends, table, self.uncertified)
        )

    def _table(
        self, refuse: Refuse, rows: int, pages: Tensor | None, requests: Tensor | None
    ) -> BlockTable | None:
        """Return how local positions become slots, if they do."""
        if self._problem.output == "slots":
            return checked_table(refuse, rows, pages, requests, self._page_size)
        refuse.unless_none("block_table", pages, "output 'slots'")
        refuse.unless_none("request_ids", requests, "output 'slots'")
        return None

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
