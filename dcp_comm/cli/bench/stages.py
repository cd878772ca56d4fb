"""The stages of a merge on one device, each by itself, on buffers of p ranks.

A `Stage` makes `Work` from a `Batch`: its buffers are allocated once, its result is known before.
Its bytes are those that it cannot avoid: every input that it needs read once, every output written
once. What moves more has a smaller share of the copy bandwidth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from dcp_comm.cli.bench import rows
from dcp_comm.cli.bench.inputs import Part, Question
from dcp_comm.cli.bench.work import Work
from dcp_comm.kernels.dispatch import primitives_for
from dcp_comm.kernels.lemma import SplitterShape, splitter_shape
from dcp_comm.kernels.primitives import Emission, Primitives
from dcp_comm.kernels.torch_ops import copy_splitters
from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import encode, ids_of
from dcp_comm.topk.local import local_topk

_OURS = "dcp_comm kernels"
RowBytes = Callable[[Question], int]


@dataclass(frozen=True)
class Batch:
    """The parts of all ranks on one device; stages do the first rank's work.

    Attributes:
        question: What is merged.
        parts: What each rank holds of it.
    """

    question: Question
    parts: list[Part]

    @classmethod
    def of(cls, question: Question) -> "Batch":
        """Deal a question's rows."""
        return cls(question, [question.part(rank) for rank in range(question.size)])

    @property
    def part(self) -> Part:
        """The first rank's."""
        return self.parts[0]

    @cached_property
    def keys(self) -> Tensor:
        """int64 (p, T, K), as the ids lie."""
        return torch.stack([_keys(part) for part in self.parts])

    @cached_property
    def runs(self) -> Tensor:
        """int64 (p, T, K), descending."""
        return self.keys.sort(dim=2, descending=True).values


@dataclass(frozen=True)
class Stage:
    """One stage by one implementation.

    Attributes:
        name: What it does.
        by: What it is made of.
        prepare: Allocates, and returns the work.
        row_bytes: Bytes that a row of the question must move.
        ranks: Whether it is of use with several ranks alone.
    """

    name: str
    by: str
    prepare: Callable[[Batch], Work]
    row_bytes: RowBytes
    ranks: bool = False


def _keys(part: Part) -> Tensor:
    ids = part.ids.long()
    scores = part.logits.gather(1, ids.clamp(min=0))
    return encode(scores, part.shard.global_index(ids), mask_neg_inf=True)


def _pack(batch: Batch) -> Work:
    keys = torch.empty_like(batch.keys[0])
    return Work(
        "pack from logits",
        lambda: keys.copy_(_keys(batch.part)),
        [keys],
        lambda: rows.differing(keys, batch.keys[0]),
    )


def _sort(batch: Batch) -> Work:
    run, order = torch.empty_like(batch.keys[0]), torch.empty_like(batch.keys[0])
    return Work(
        "sort",
        lambda: torch.sort(batch.keys[0], dim=1, descending=True, out=(run, order)),
        [run],
        lambda: rows.differing(run, batch.runs[0]),
    )


def _kernels(batch: Batch) -> Primitives:
    size, _, k = batch.runs.shape
    kernels = primitives_for(batch.runs.device, k, size)
    kernels.prepare()
    return kernels


def _emission(batch: Batch, shard: Shard | None, *, tail: bool = True) -> Emission:
    ids = torch.empty_like(batch.part.ids)
    counts, certified = torch.empty_like(ids[:, 0]), torch.empty_like(ids[:, 0], dtype=torch.bool)
    uncertified = torch.zeros((), dtype=torch.int64, device=ids.device)
    return Emission(ids, counts, certified, uncertified, False, shard, None, tail)


def _pack_unsorted(batch: Batch) -> Work:
    keys, part, kernels = torch.empty_like(batch.keys[0]), batch.part, _kernels(batch)

    def pack() -> None:
        columns = (part.logits, part.ids, None, part.lengths)
        kernels.pack_logits(keys, *columns, shard=part.shard, mask_neg_inf=True, ordered=False)

    return Work("pack unsorted", pack, [keys], lambda: rows.differing(keys, batch.keys[0]))


def _pack_sort(batch: Batch) -> Work:
    run, part, kernels = torch.empty_like(batch.keys[0]), batch.part, _kernels(batch)
    columns = (part.logits, part.ids, None, part.lengths)
    return Work(
        "pack + sort",
        lambda: kernels.pack_logits(run, *columns, shard=part.shard, mask_neg_inf=True),
        [run],
        lambda: rows.differing(run, batch.runs[0]),
    )


def _select_unsorted(batch: Batch) -> Work:
    ids, keys = torch.empty_like(batch.part.ids), batch.keys

    def select() -> None:
        best = keys.transpose(0, 1).flatten(1).topk(ids.shape[1], dim=1).values
        ids.copy_(ids_of(best))

    wanted = batch.question.winners
    return Work("select unsorted lists", select, [ids], lambda: rows.differing(ids, wanted))


def _select_lists(batch: Batch) -> Work:
    kernels, keys = _kernels(batch), batch.keys
    return _selection(batch, "select unsorted lists + emit", partial(kernels.select, keys, None))


def _select_sorted(batch: Batch) -> Work:
    kernels, runs = _kernels(batch), batch.runs
    return _selection(batch, "select sorted runs + emit", partial(kernels.merge_runs, runs, None))


def _selection(batch: Batch, name: str, select: Callable[[Emission], None]) -> Work:
    to, wanted = _emission(batch, None), batch.question.winners
    return Work(name, lambda: select(to), [to.ids], lambda: rows.differing(to.ids, wanted))


def _split(batch: Batch, *, tail: bool = True) -> Work:
    """What strategy "splitter" does between its exchanges, whose results stay from before.

    Splitters come with the sorted runs; what is written over them is restored each time, by a copy
    that is timed too and that no merge needs.
    """
    shape, kernels, runs = _shape(batch.question), _kernels(batch), batch.runs
    to, (size, count, _) = _emission(batch, batch.part.shard, tail=tail), runs.shape
    splitters = runs.new_empty(size, count, shape.splitters)
    windows = runs.new_empty(size, count, shape.window)
    starts, answers = runs.new_empty(size, count), runs.new_empty(1, count)
    for rank in range(size):
        copy_splitters(splitters[rank], runs[rank], shape.block)
    largest = splitters[0, :, 0].clone()
    kernels.open_windows(splitters, starts, None, shape)
    for rank in range(size):
        kernels.copy_windows(windows[rank], runs[rank], starts[rank])

    def split() -> None:
        splitters[0, :, 0] = largest
        kernels.open_windows(splitters, answers, 0, shape)
        kernels.copy_windows(windows[0], runs[0], answers[0])
        kernels.close_windows(splitters, windows, answers, 0, shape)
        kernels.emit_own(runs[0], answers[0], to)

    wanted = batch.question.own(0)

    def wrong() -> int:
        found = to.ids if tail else torch.where(wanted < 0, wanted, to.ids)
        return rows.differing(found, wanted)

    return Work("splitter searches + emit" + ", no tail" * (not tail), split, [to.ids], wrong)


def _local(batch: Batch) -> Work:
    return local_topk_work(batch.part.logits, batch.question.k)


def local_topk_work(logits: Tensor, k: int) -> Work:
    """Return the library's own top-K of whole rows (T, n)."""
    kept: list[Tensor] = []
    lengths = torch.full((len(logits),), logits.shape[1], dtype=torch.int32, device=logits.device)

    def local() -> None:
        kept[:] = local_topk(logits, k, lengths=lengths)

    wanted = rows.winners(logits, k)
    return Work("local top-K", local, [], lambda: rows.differing(kept[1], wanted))


def _shape(question: Question) -> SplitterShape:
    return splitter_shape(question.k, question.size)


def _split_bytes(question: Question, *, tail: bool = True) -> int:
    shape, own = _shape(question), question.k // question.size
    moved = shape.splitters + shape.window
    return 8 * question.size * moved + 8 * own + 4 * (question.k if tail else own)


def local_row_bytes(question: Question) -> int:
    """Bytes of a row's local top-K: logits in, scores and ids out."""
    return 4 * -(-question.shape.length // question.size) + 8 * question.k


STAGES = (
    Stage("local top-K", "dcp_comm.local_topk", _local, local_row_bytes),
    Stage("pack from logits", "torch ops", _pack, lambda q: 16 * q.k),
    Stage("sort", "torch ops", _sort, lambda q: 16 * q.k),
    Stage("pack unsorted", _OURS, _pack_unsorted, lambda q: 16 * q.k),
    Stage("pack + sort", _OURS, _pack_sort, lambda q: 16 * q.k),
    Stage(
        "select unsorted lists",
        "torch ops",
        _select_unsorted,
        lambda q: (8 * q.size + 4) * q.k,
        ranks=True,
    ),
    Stage(
        "select unsorted lists + emit",
        _OURS,
        _select_lists,
        lambda q: (8 * q.size + 4) * q.k,
        ranks=True,
    ),
    Stage("select sorted runs + emit", _OURS, _select_sorted, lambda q: 12 * q.k, ranks=True),
    Stage("splitter searches + emit", _OURS, _split, _split_bytes, ranks=True),
    Stage(
        "splitter searches + emit, no tail",
        _OURS,
        partial(_split, tail=False),
        partial(_split_bytes, tail=False),
        ranks=True,
    ),
)
"""The library's."""
