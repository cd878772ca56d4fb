"""SparseIndexer: scores, selects and merges, on prefill's path or decode's."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.indexer.arguments import check_batch, check_step, check_workspace, unless_at_most
from dcp_comm.indexer.batch import IndexerBatch
from dcp_comm.indexer.decode import Decode
from dcp_comm.indexer.limits import IndexerLimits
from dcp_comm.indexer.path import Path, Setup, Step
from dcp_comm.indexer.prefill import Prefill
from dcp_comm.indexer.scoring import Score, relu_scores
from dcp_comm.sharding import Shard
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.arguments import INTEGERS, Refuse
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace, WorkspaceSlot


class SparseIndexer:
    """Each row's exact top-K of all tokens it may see, by the index score of DeepSeek-V3.2.

    ``score(t, s) = sum over h of weights[t, h] * relu(q[t, h] . key[s]) * scale``, in float32. The
    package docstring has the steps of use and a table of the inputs.

    Beside the reservation a call allocates its result (unless ``out`` is given) and temporaries of
    torch operations, which work in blocks: with n tokens of ``max_model_len`` on a rank, at any
    time below ``128 * T + 48 * max(2**20, n) + 64 * K * (64 + 8 * size)`` bytes.

    Args:
        comm: The ranks among which the tokens are dealt.
        limits: The most that one call will bring.
        output: As for `TopKMerge`: ``local`` positions of a rank's own winners; their ``slots``, by
            the batch's page table, which is int32 then; or ``global`` ids.
        scale: Finite factor of every score; 1 where ``weights`` has it in them already.
        score: What fills logits; `relu_scores`, or a faster one with the same result.
        mask_neg_inf: As for `TopKMerge`.
        shard_rank: As for `TopKMerge`.
        options: As for `TopKMerge`; pages have the size that the limits say.
        **merge_options: Further options of `TopKMerge`: ``strategy``, ``order``, ``chunk_rows``.

    Raises:
        CommArgumentError: An argument is not as above. Construction sends nothing.
    """

    def __init__(
        self,
        comm: Communicator,
        limits: IndexerLimits,
        output: str = "local",
        scale: float = 1.0,
        score: Score = relu_scores,
        mask_neg_inf: bool = True,
        shard_rank: int | None = None,
        options: MergeOptions | None = None,
        **merge_options: Any,
    ) -> None:
        refuse = self._refuse("", comm)
        if not isinstance(limits, IndexerLimits):
            raise refuse("limits", type(limits).__name__, "IndexerLimits")
        if not isinstance(scale, int | float) or not math.isfinite(scale):
            raise refuse("scale", repr(scale), "a finite number")
        if not callable(score):
            raise refuse("score", repr(score), "a callable such as relu_scores")
        options = MergeOptions() if options is None else options
        if isinstance(options, MergeOptions):
            options = replace(options, page_size=limits.page_size)

        def merge(rows: int) -> TopKMerge:
            return TopKMerge(
                comm,
                limits.k,
                rows,
                limits.interleave,
                output=output,
                mask_neg_inf=mask_neg_inf,
                options=options,
                shard_rank=shard_rank,
                **merge_options,
            )

        merges = merge(limits.query_rows), merge(limits.decode_rows)
        place = comm.rank if shard_rank is None else shard_rank
        shard = Shard(place, comm.size, limits.interleave)
        self._setup = Setup(limits, shard, score, scale, mask_neg_inf, output == "slots")
        self._tables = (torch.int32,) if self._setup.slots else INTEGERS
        self._comm = comm
        self._prefill = Prefill(self._setup, merges[0], limits.query_rows)
        self._decode = Decode(self._setup, merges[1], limits.decode_rows)

    def __repr__(self) -> str:
        return f"SparseIndexer({self._setup.limits}, {self._setup.shard})"

    def prefill_specs(self) -> tuple[BufferSpec, ...]:
        """Return what a prefill call takes at once: keys, logits, top-K planes, merge scratch."""
        return self._prefill.specs()

    def decode_specs(self) -> tuple[BufferSpec, ...]:
        """Return what a decode call takes at once, by ``requests * next_n`` rows."""
        return self._decode.specs()

    def reserve(self, workspace: Workspace) -> None:
        """Reserve the worst case of both paths: what the profiling branch of an engine calls.

        Raises:
            CommArgumentError: ``workspace`` is none.
            WorkspaceExhausted: It is locked and too small.
        """
        if not isinstance(workspace, Workspace):
            raise self._refuse(".reserve")("workspace", type(workspace).__name__, "a Workspace")
        for path in (self._prefill, self._decode):
            workspace.reserve(*path.specs(), owner=path.owner)

    def prepare(self) -> None:
        """Agree on the options with the other ranks and compile; collective.

        The first calls do what was not done before; no graph must capture that.

        Raises:
            CommMismatch: Ranks differ in an option.
        """
        self._prefill.merge.prepare()
        self._decode.merge.prepare()
        local_topk(torch.zeros(1, 1, device=self._comm.device), self._setup.limits.k)

    def slots(self, batch: IndexerBatch) -> Tensor:
        """Return where the rows' own new keys belong in this rank's cache, for `write_keys`.

        Row by row the slot of the token at the row's own position; the same for every layer.

        Returns:
            int64 (T,), freshly allocated; -1 for a token of another rank, and for padding.

        Raises:
            CommArgumentError: The batch is beyond the limits.
        """
        check_batch(self._refuse(".slots"), batch, self._setup.limits)
        return batch.own_slots(self._setup.shard, self._setup.limits.page_size)

    def all_counts(self, result: MergeResult, out: Tensor | None = None) -> Tensor:
        """Gather every rank's counts, for whoever needs more than this rank's own; collective.

        Args:
            result: Of the same call on every rank.
            out: int32 (size, T), contiguous; None to allocate.

        Returns:
            int32 (size, T), one row a rank of the communicator, in its order. Outputs ``local`` and
            ``slots``: a column sums to the row's winners; ``global``: every rank has all of them.

        Raises:
            CommArgumentError: An argument is not as above; nothing was sent.
        """
        counts = result.counts.contiguous()
        if out is None:
            out = counts.new_empty(self._comm.size, len(counts))
        self._comm.all_gather_into(out, counts)
        return out

    def prefill(
        self,
        q: Tensor,
        weights: Tensor,
        keys: Tensor,
        batch: IndexerBatch,
        workspace: Workspace | WorkspaceSlot,
        out: MergeResult | None = None,
    ) -> MergeResult:
        """Select for up to ``query_rows`` rows of any requests; collective.

        Args:
            q: float32 (T, H, D), any strides.
            weights: float32 (T, H), any strides.
            keys: The cache, float32 or bfloat16 (pages, page_size, D) or fp8 with scales in uint8
                (pages, page_size, D + 4), contiguous: where this rank's tokens of all requests
                already lie, those of this step included. See `dcp_comm.indexer.pages`.
            batch: Whose rows these are.
            workspace: Where `prefill_specs` were reserved; none of the other arguments lies there.
            out: Where to write, exactly T rows; None to allocate.

        Returns:
            ``out``, or the allocated result, which is the caller's.

        Raises:
            CommArgumentError: An argument is not as above or beyond the limits; nothing was sent.
            WorkspaceExhausted: The workspace is locked and too small; nothing was sent.
            CommMismatch: Ranks differ in an option or in the rows they bring.
        """
        refuse, limits = self._refuse(".prefill"), self._setup.limits
        check_batch(refuse, batch, limits, self._tables)
        unless_at_most(refuse, "batch.query_lengths", batch.rows, "query_rows", limits.query_rows)
        return self._run(self._prefill, refuse, Step(q, weights, keys, batch), workspace, out)

    def decode(
        self,
        q: Tensor,
        weights: Tensor,
        cache: Tensor,
        batch: IndexerBatch,
        workspace: Workspace | WorkspaceSlot,
        out: MergeResult | None = None,
    ) -> MergeResult:
        """Select for up to ``next_n`` rows of each request; collective.

        Arguments, result and errors are those of `prefill`, with `decode_specs` for
        `prefill_specs` and ``cache`` for ``keys``.
        """
        refuse, limits = self._refuse(".decode"), self._setup.limits
        check_batch(refuse, batch, limits, self._tables)
        most = max(batch.query_lengths, default=0)
        unless_at_most(refuse, "batch.query_lengths", most, "next_n", limits.next_n)
        return self._run(self._decode, refuse, Step(q, weights, cache, batch), workspace, out)

    def _run(
        self,
        path: Path,
        refuse: Refuse,
        step: Step,
        workspace: Workspace | WorkspaceSlot,
        out: MergeResult | None,
    ) -> MergeResult:
        """Check the rest, take everything at once, go."""
        check_workspace(refuse, workspace)
        check_step(refuse, path.cache, step, self._setup.limits, self._setup.shard)
        inputs = [step.q, step.weights, step.cache, step.batch.page_table]
        if out is not None:
            refuse.unless_result(out, step.batch.rows, self._setup.limits.k)
            inputs += [out.ids, out.counts, out.certified]
        views = workspace.take(*path.specs())
        refuse.unless_scratch(views, path.specs())
        refuse.if_overlapping(views, *inputs)
        return path.run(step.detached(), views, out)

    def _refuse(self, method: str, comm: Communicator | None = None) -> Refuse:
        comm = comm or self._comm
        return Refuse(f"SparseIndexer{method}", comm.device, comm.where)
