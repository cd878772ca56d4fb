"""Kernels against torch operations on a GPU: every capacity, random shapes, far and bad memory."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.kernels.cuda.launcher import CudaLauncher, cuda_launcher
from dcp_comm.kernels.cuda.primitives import MAX_K, MAX_SIZE, MIN_K
from dcp_comm.kernels.cuda.sources import read_all
from tests.kernels.both import SCORES, Both, Point
from tests.kernels.checks import CHECKS, check_every_half, check_the_largest_id
from tests.kernels.nvrtc import missing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(missing()), reason=missing())]

KS = (8, 37, 512, 513, 1024, 2048, 3001, 4096)


def on_gpu(point: Point) -> Both:
    return Both(cuda_launcher(0), point, "cuda:0")


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("kind", SCORES)
def test_kernels_do_what_torch_does(kind: str, k: int) -> None:
    """With rows of a decode step, and with more."""
    for seed, (rows, poison) in enumerate(((5, 0xFF), (130, 0xA5))):
        size = (1, 2, 3, 4, 5, 8)[(seed + k + len(kind)) % 6]
        point = Point(
            kind, k, size, rows, (1, 3, 16, 64)[(seed + k) % 4], bool(seed % 2), poison, seed
        )
        for check in CHECKS:
            check(on_gpu(point))


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(sorted(SCORES)),
    k=st.integers(MIN_K, MAX_K) | st.integers(MIN_K, 70),
    size=st.integers(1, MAX_SIZE),
    rows=st.integers(1, 40) | st.integers(120, 300),
    interleave=st.integers(1, 100) | st.just(2**31 - 1),
    by_position=st.booleans(),
    poison=st.sampled_from([0xFF, 0xA5, 0x00, 0x7F]),
    seed=st.integers(0, 2**31),
)
def test_kernels_do_what_torch_does_anywhere(
    kind: str,
    k: int,
    size: int,
    rows: int,
    interleave: int,
    by_position: bool,
    poison: int,
    seed: int,
) -> None:
    rows = min(rows, 1 + 2**20 // (k * size))
    point = Point(kind, k, size, rows, interleave, by_position, poison, seed)
    for check in CHECKS:
        check(on_gpu(point))


def test_every_half_is_read_exactly() -> None:
    check_every_half(cuda_launcher(0), "cuda:0")


@pytest.mark.parametrize("by_position", [False, True])
def test_the_largest_id_passes_for_uncertified(by_position: bool) -> None:
    check_the_largest_id(cuda_launcher(0), "cuda:0", by_position=by_position)


@pytest.mark.parametrize(("rows", "k"), [(4, 2048), (200, 2048), (200, 4096), (3, 37)])
def test_a_thousand_repeats_give_the_same_bits(rows: int, k: int) -> None:
    """Of rows in which all scores, and many ids, are equal."""
    both = on_gpu(Point("equal", k, 4, rows, by_position=rows == 200 and k == 4096))
    (ids, _), scores = both.candidates(), both.give(both.scores(k))
    given_ids, runs, shard = both.give(ids), both.runs(), both.shard(1)
    run = torch.empty(rows, k, dtype=torch.int64, device="cuda")
    winners = torch.empty(rows, k, dtype=torch.int32, device="cuda")
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    same = torch.ones((), dtype=torch.bool, device="cuda")
    for _ in range(1000):
        both.kernels.pack(run, scores, given_ids, None, shard=shard, mask_neg_inf=True)
        both.kernels.merge_sealed(runs, winners, by_position=both.point.by_position)
        seen = seen or [(run.clone(), winners.clone())]
        same &= (run == seen[0][0]).all() & (winners == seen[0][1]).all()
    assert bool(same)


def test_prepare_leaves_nothing_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = CudaLauncher(torch.device("cuda", 0), read_all())
    points = [Point("normal", 37, 3, by_position=order, seed=6) for order in (False, True)]
    for point in points:
        Both(launcher, point, "cuda:0").kernels.prepare()

    def refuse(kernel: str) -> None:
        raise AssertionError(f"{kernel} was not loaded")

    monkeypatch.setattr(launcher, "load", refuse)
    for point, check in itertools.product(points, CHECKS):
        check(Both(launcher, point, "cuda:0"))


class Far:
    """What torch takes for float32 logits of two rows, of which the second is nowhere."""

    def __init__(self, first: torch.Tensor) -> None:
        self.first = first
        self.__cuda_array_interface__ = {
            "shape": (2, len(first)),
            "strides": (1 << 45, 4),
            "typestr": "<f4",
            "data": (first.data_ptr(), False),
            "version": 3,
        }


@pytest.mark.parametrize("stale", [0, 5, 2**31 - 1, -1, -(2**31)])
def test_padding_rows_never_read_their_logits(stale: int) -> None:
    """Of length 0, or without an id that exists: the second row's logits are not mapped."""
    k, width = 512, 600
    both = on_gpu(Point("normal", k, 2, 2))
    near = torch.from_numpy(np.random.default_rng(0).normal(size=width)).float().cuda()
    far = torch.as_tensor(Far(near), device="cuda")
    assert far.stride(0) > 1 << 40
    ids = torch.arange(k, dtype=torch.int32).repeat(2, 1)
    ids[1] = stale
    given_ids, right = both.give(ids), torch.stack([near, near])
    lengths = both.give(torch.tensor([k, 0]))
    starts = torch.tensor([3, -stale], device="cuda", dtype=torch.int64)
    for told in (lengths, None) if stale < 0 else (lengths,):
        run, expected = torch.empty(2, 2, k, dtype=torch.int64, device="cuda")
        for way, out, logits in ((both.kernels, run, far), (both.reference, expected, right)):
            way.pack_logits(
                out, logits, given_ids, starts, told, shard=both.shard(0), mask_neg_inf=True
            )
        assert torch.equal(run, expected)
        torch.cuda.synchronize()
