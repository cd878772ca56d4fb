"""What the stages are measured against, in the same run and on the same rows."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from dcp_comm.cli.bench import rows
from dcp_comm.cli.bench.inputs import Question
from dcp_comm.cli.bench.seed import CHUNK_ROWS, SeedRoute
from dcp_comm.cli.bench.stages import Batch, RowBytes, Stage, local_row_bytes
from dcp_comm.cli.bench.work import Work


def baselines(device: torch.device) -> tuple[Stage, ...]:
    """Return the seed's route by steps and whole, and other local top-K that can run there."""
    chunked, unchunked = (partial(_whole, chunk_rows=each) for each in (CHUNK_ROWS, None))
    found = [
        _step("pack", "torch.gather", _pack, lambda q: 16 * q.k),
        _step("rank-to-row copy", "torch.copy_", _copy, lambda q: 16 * q.size * q.k),
        _step("select", "torch.topk", _select, lambda q: (8 * q.size + 4) * q.k),
        _step(f"local part, {CHUNK_ROWS}-row chunks", "torch", chunked, _whole_bytes),
        _step("local part, unchunked", "torch", unchunked, _whole_bytes),
        Stage("local top-K", "torch.topk", _torch_topk, local_row_bytes),
    ]
    if device.type == "cuda" and find_spec("flashinfer"):
        found.append(Stage("local top-K", "flashinfer.top_k", _flashinfer, local_row_bytes))
    return tuple(found)


def checked(name: str, call: Any, route: SeedRoute, question: Question) -> Work:
    """Return work on the seed's route, whose winners are compared by their scores."""
    scores, wanted = question.scores, question.winners

    def inexact() -> int:
        return rows.differing(route.ids.sort(dim=1).values, wanted.sort(dim=1).values)

    def wrong() -> int:
        return rows.other_scores(scores, route.ids, wanted)

    return Work(name, call, [route.ids], wrong, inexact)


def _step(name: str, by: str, prepare: Callable[[Batch], Work], row_bytes: RowBytes) -> Stage:
    return Stage(f"seed: {name}", by, prepare, row_bytes, ranks=True)


def _pack(batch: Batch) -> Work:
    route = SeedRoute(batch.part, batch.question.k, None)
    every = route.chunks()[0]
    wanted = torch.stack([_scores(batch), batch.part.shard.global_index(batch.part.ids)], 2)

    def wrong() -> int:
        return rows.differing(route.packed.flatten(1), wanted.flatten(1))

    return Work("seed: pack", lambda: route.pack(every), [route.packed], wrong)


def _copy(batch: Batch) -> Work:
    route = SeedRoute(batch.part, batch.question.k, None)
    gathered = _gathered(batch, route)[0]

    def wrong() -> int:
        wanted = torch.cat(list(gathered), 1).movedim(2, 0)
        return int((route.by_row != wanted).any(2).sum())

    return Work("seed: rank-to-row copy", lambda: route.move(gathered), [route.by_row], wrong)


def _select(batch: Batch) -> Work:
    route = SeedRoute(batch.part, batch.question.k, None)
    every, by_row = route.chunks()[0], route.move(_gathered(batch, route)[0])
    return checked("seed: select", lambda: route.select(by_row, every), route, batch.question)


def _whole(batch: Batch, chunk_rows: int | None) -> Work:
    """All steps but the exchange, whose results stay from before."""
    route = SeedRoute(batch.part, batch.question.k, chunk_rows)
    chunks = list(zip(route.chunks(), _gathered(batch, route), strict=True))

    def merge() -> None:
        for each, gathered in chunks:
            route.pack(each)
            route.select(route.move(gathered), each)

    return checked("seed: local part", merge, route, batch.question)


def _torch_topk(batch: Batch) -> Work:
    return _local(batch, "torch.topk", torch.topk)


def _flashinfer(batch: Batch) -> Work:
    return _local(batch, "flashinfer.top_k", import_module("flashinfer").top_k)


def _local(batch: Batch, name: str, topk: Any) -> Work:
    """Select from the logits themselves; ids come as int64 and stay so."""
    logits, kept = batch.part.logits, list[Tensor]()
    k = min(batch.question.k, logits.shape[1])
    wanted = rows.winners(logits, k)

    def call() -> None:
        kept[:] = [topk(logits, k)[1]]

    def wrong() -> int:
        return rows.other_scores(logits, kept[0], wanted)

    def inexact() -> int:
        return rows.differing(kept[0].sort(dim=1).values, wanted.sort(dim=1).values)

    return Work(f"local top-K by {name}", call, [], wrong, inexact)


def _gathered(batch: Batch, route: SeedRoute) -> list[Tensor]:
    """Return what every chunk's all-gather leaves, float32 (p, rows, K, 2)."""
    routes = [SeedRoute(part, batch.question.k, None) for part in batch.parts]
    packed = [each.pack(each.chunks()[0]) for each in routes]
    return [torch.stack([each[chunk] for each in packed]) for chunk in route.chunks()]


def _scores(batch: Batch) -> Tensor:
    return batch.part.logits.gather(1, batch.part.ids.long().clamp(min=0))


def _whole_bytes(question: Question) -> int:
    """Of a merge that reads every rank's candidates once, behind its own packing."""
    return 16 * question.k + (8 * question.size + 4) * question.k
