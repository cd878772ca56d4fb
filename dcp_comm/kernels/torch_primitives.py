"""The merge's arithmetic by torch operations: the reference, and the way for every device."""

import torch
from torch import Tensor

from dcp_comm.kernels import torch_ops as ops
from dcp_comm.kernels.lemma import SplitterShape
from dcp_comm.kernels.primitives import Emission, Primitives, Splitters
from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import PAD


class TorchPrimitives(Primitives):
    """Torch operations; they allocate temporaries, bounded as `dcp_comm.kernels.torch_ops` says."""

    name = "torch"

    def __init__(self, why: str = "asked for") -> None:
        """Keep why this is the way."""
        self.why = why

    def prepare(self) -> None:
        """There is nothing to compile."""

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
        """Encode, and sort."""
        ops.pack(run, scores, ids, lengths, shard=shard, mask_neg_inf=mask_neg_inf, ordered=ordered)
        _split(run, splitters)

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
        """Look up, encode, and sort."""
        columns = (logits, ids, row_starts, lengths)
        ops.pack_logits(run, *columns, shard=shard, mask_neg_inf=mask_neg_inf, ordered=ordered)
        _split(run, splitters)

    def merge_runs(self, runs: Tensor, own: int | None, to: Emission) -> None:
        """Find the prefixes, write them."""
        lengths, certified = _select(runs)
        kept = slice(None) if own is None else slice(own, own + 1)
        _emit(runs[kept], lengths[kept], certified, to)

    def merge_sealed(self, runs: Tensor, ids: Tensor, *, by_position: bool) -> None:
        """Find the prefixes, write them, mark."""
        lengths, certified = _select(runs)
        ops.emit(ids, runs, lengths, by_position=by_position, shard=None)
        ops.seal(ids, certified)

    def select(self, lists: Tensor, own: int | None, to: Emission) -> None:
        """Sort where they lie, then merge."""
        ops.sort_lists(lists)
        self.merge_runs(lists, own, to)

    def select_sealed(self, lists: Tensor, ids: Tensor, *, by_position: bool) -> None:
        """Sort where they lie, then merge."""
        ops.sort_lists(lists)
        self.merge_sealed(lists, ids, by_position=by_position)

    def unseal(self, ids: Tensor, to: Emission) -> None:
        """Copy, then unmark the copy."""
        to.ids.copy_(ids)
        certified = ops.unseal(to.ids)
        to.counts.copy_(ops.count_ge(to.ids[None], 0)[0])
        _certify(certified, to)

    def settle(self, runs: Tensor, verdicts: Tensor) -> None:
        """Find the prefixes."""
        verdicts.copy_(ops.verdicts(*_select(runs)))

    def open_windows(
        self, splitters: Tensor, starts: Tensor, own: int | None, shape: SplitterShape
    ) -> None:
        """Find how many splitters of each run are among the t largest."""
        settled = ops.prefix_lengths(splitters, shape.settled)
        x = ops.threshold(splitters, settled, shape.settled)
        starts.copy_(_kept((settled * shape.block).masked_fill(x == PAD, shape.k), own))
        if shape.settled:
            splitters[0, :, 0] = x

    def copy_windows(self, windows: Tensor, run: Tensor, starts: Tensor) -> None:
        """Copy by index."""
        ops.copy_windows(windows, run, starts)

    def close_windows(
        self,
        splitters: Tensor,
        windows: Tensor,
        answers: Tensor,
        own: int | None,
        shape: SplitterShape,
    ) -> None:
        """Find how many keys of each window are among the W largest."""
        lengths = ops.prefix_lengths(windows, shape.window)
        last = ops.threshold(windows, lengths, shape.window)
        if shape.settled:
            last = last.minimum(splitters[0, :, 0])
        certified = ops.certify(splitters, last)
        answers.copy_(ops.verdicts(answers + _kept(lengths, own), certified))

    def emit_own(self, run: Tensor, verdicts: Tensor | None, to: Emission) -> None:
        """Write the prefix, as far as it is valid."""
        lengths = ops.count_ge(run[None], PAD + 1)
        certified = torch.ones_like(to.certified)
        if verdicts is not None:
            kept, certified = ops.read_verdicts(verdicts)
            lengths = lengths.minimum(kept)
        _emit(run[None], lengths, certified, to)


def _split(run: Tensor, splitters: Splitters | None) -> None:
    if splitters is not None:
        ops.copy_splitters(splitters.keys, run, splitters.block)


def _select(runs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the winning prefixes int64 (p, rows) of whole runs (p, rows, K), and certificates."""
    k = runs.shape[2]
    lengths = ops.prefix_lengths(runs, k)
    return lengths, ops.certify(runs, ops.threshold(runs, lengths, k))


def _kept(of_all: Tensor, own: int | None) -> Tensor:
    return of_all if own is None else of_all[own : own + 1]


def _emit(runs: Tensor, lengths: Tensor, certified: Tensor, to: Emission) -> None:
    """Write prefixes (q, rows) that hold valid keys alone."""
    ops.emit(to.ids, runs, lengths, by_position=to.by_position, shard=to.shard)
    if to.table is not None:
        ops.to_slots(to.ids, to.table.pages, to.table.requests, to.table.page_size)
    to.counts.copy_(lengths.sum(0).clamp(max=to.ids.shape[1]))
    _certify(certified, to)


def _certify(certified: Tensor, to: Emission) -> None:
    to.certified.copy_(certified)
    to.uncertified.add_(to.rows - certified.sum())
