"""Whole merges with their arithmetic done by kernels, run on the CPU, against the oracle."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from dcp_comm.kernels.cuda.primitives import CudaPrimitives
from dcp_comm.kernels.primitives import Primitives
from dcp_comm.topk import merge
from tests.kernels.emulated import emulator_for, needs_compiler
from tests.kernels.simt.emulator import Emulator
from tests.topk.cases import Case, check_merge, select_lists
from tests.topk.scores import KINDS, drawn, drawn_lengths
from tests.topk.test_sweep import build
from tests.topk.variants import check_variants

pytestmark = needs_compiler

OUTPUTS = ("global", "local", "slots")
ROWS = 9


def by_kernels(patch: pytest.MonkeyPatch, k: int, seed: int) -> Emulator:
    """Have merges of K done by kernels."""
    emulator = emulator_for(k, seed)

    def chosen(device: torch.device, k: int, size: int, block: int | None) -> Primitives:
        return CudaPrimitives(emulator, k, size)

    patch.setattr(merge, "primitives_for", chosen)
    select_lists(patch)
    return emulator


def cases() -> Iterator[Case]:
    """Every output and order with each number of ranks, scores and K in turn."""
    kinds = list(KINDS)
    for seed, (size, k) in enumerate(
        [(1, 37), (2, 300), (3, 9), (4, 64), (5, 37), (8, 20)] * len(OUTPUTS)
    ):
        rng = np.random.default_rng(seed)
        length = size * k + 5
        yield Case(
            drawn(kinds[seed % len(kinds)], ROWS, length, rng),
            drawn_lengths(ROWS, length, k, rng),
            size,
            k,
            (1, 4, 16)[seed % 3],
            output=OUTPUTS[seed // 6],
            order=("score", "position")[(seed // 2 + seed) % 2],
            chunk_rows=(None, 4)[seed % 2],
            segments=((), (1, 3, 2))[seed // 3 % 2],
            logits=(None, torch.float32, torch.bfloat16)[seed % 3] if seed % 4 else None,
            poison=(0xFF, 0xA5)[seed % 2],
            seed=seed,
        )


CASES = [
    replace(each, scores=torch.from_numpy(each.scores).to(each.logits).float().numpy())
    if each.logits is not None
    else each
    for each in cases()
]


def test_the_cases_meet_every_output_in_both_orders() -> None:
    assert {(each.output, each.order) for each in CASES} == {
        (output, order) for output in OUTPUTS for order in ("score", "position")
    }


@pytest.mark.parametrize("n", range(len(CASES)))
def test_every_strategy_merges_as_the_oracle_does(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[n]
    emulator = by_kernels(monkeypatch, case.k, n % 3)
    before = len(emulator.launches)
    assert check_variants(case) > 0
    assert len(emulator.launches) > before


@pytest.mark.parametrize("output", ["local", "global"])
@pytest.mark.parametrize("longest", [None, 20])
def test_long_chunks_and_short_ones(
    output: str, longest: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's own winners are selected from runs of many rows, but from lists of few."""
    k, rows, rng = 20, 300, np.random.default_rng(1)
    scores, lengths = drawn("few", rows, 3 * k, rng), drawn_lengths(rows, 3 * k, k, rng)
    lengths = lengths if longest is None else np.minimum(lengths, longest)
    emulator = by_kernels(monkeypatch, k, 1)
    del emulator.launches[:]
    case = Case(scores, lengths, 3, k, output=output, chunk_rows=200, longest=longest)
    check_merge(replace(case, strategy="gather"))
    lists, runs = {"list", "select_512_4"}, {"pack_512", "settle_ids", "merge_runs_512"}
    if output == "global":
        assert set(emulator.launches) == lists
    elif longest is None:
        assert set(emulator.launches) == lists | runs
    else:
        assert set(emulator.launches) == {"pack_512", "emit_own"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_large_k(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed, k in enumerate((1000, 2048, 4096)):
        by_kernels(monkeypatch, k, seed)
        for output in ("local", "global"):
            check_merge(replace(build(size, k, 16, 5, (1, 3, 2), seed), output=output))
