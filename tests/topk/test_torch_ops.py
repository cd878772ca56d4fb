"""The primitives: prefixes, thresholds, certificates, winners, in bounds whatever they are fed."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dcp_comm.kernels import torch_ops as ops
from dcp_comm.sharding import Shard
from dcp_comm.topk.keys import BEST, PAD

WHOLE = Shard(0, 1, 1)


def random_runs(size: int, rows: int, n: int, rng: np.random.Generator) -> torch.Tensor:
    """Descending runs of distinct keys, some of them short, some empty."""
    keys = rng.permutation(size * rows * n).reshape(size, rows, n) - size * rows * n // 2
    valid = rng.integers(0, n + 1, (size, rows)) * rng.choice([0, 1, 1], (size, rows))
    keys = np.sort(keys, axis=2)[:, :, ::-1] << 32
    return torch.from_numpy(np.where(np.arange(n) < valid[..., None], keys, PAD))


def candidates(rows: int, k: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random scores and distinct positions (rows, k)."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(4 * k, generator=rng)[:k] for _ in range(rows)])
    return torch.randn(rows, k, generator=rng), ids.int()


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 8),
    st.integers(0, 5),
    st.integers(1, 70),
    st.integers(0, 99),
    st.integers(0, 999),
)
def test_prefixes_hold_the_t_largest_keys(size: int, rows: int, n: int, t: int, seed: int) -> None:
    """Against a sort of everything; the threshold is the t-th, and counts agree with it."""
    runs = random_runs(size, rows, n, np.random.default_rng(seed))
    lengths = ops.prefix_lengths(runs, t)
    threshold = ops.threshold(runs, lengths, t)
    for row in range(rows):
        every = sorted((int(key) for key in runs[:, row].flatten() if key > PAD), reverse=True)
        best = set(every[:t])
        want = [sum(int(key) in best for key in run) for run in runs[:, row]]
        assert lengths[:, row].tolist() == want
        last = BEST if t == 0 else every[t - 1] if len(every) >= t else PAD
        assert threshold[row] == last
    if t:
        floor = threshold.clamp(min=PAD + 1)
        assert torch.equal((runs >= floor[:, None]).sum(2), lengths)
    assert torch.equal(ops.count_ge(runs, PAD + 1), (runs > PAD).sum(2))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 31, 32, 33])
def test_one_run_may_hold_every_winner(n: int) -> None:
    """In any run, at every power of two and beside it."""
    for best in range(3):
        runs = torch.arange(n, 0, -1).repeat(3, 1, 1) * 8
        runs[best] += 8 * n
        runs += torch.arange(3)[:, None, None]
        for t in range(1, n + 1):
            assert ops.prefix_lengths(runs, t)[:, 0].tolist() == [t * (r == best) for r in range(3)]


@pytest.mark.parametrize("seed", range(5))
def test_keys_repeated_in_a_run_never_win_beyond_t(seed: int) -> None:
    """A local kernel that lists a token twice cannot make the prefixes longer than t in all."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 4, (4, 6, 16)) * 8 + np.arange(4)[:, None, None]
    runs = torch.from_numpy(np.sort(keys, axis=2)[:, :, ::-1].copy())
    for t in (1, 7, 16, 63, 64, 99):
        lengths = ops.prefix_lengths(runs, t)
        assert (lengths.sum(0) == min(t, 64)).all()
        ids = torch.full((6, 16), -7, dtype=torch.int32)
        ops.emit(ids, runs, lengths, by_position=False, shard=None)
        assert (ids != -7).all()


def test_emit_cuts_what_exceeds_its_width() -> None:
    """Lengths that are too long, or beyond the run, read and write nothing outside."""
    runs = (torch.arange(12, 0, -1).view(2, 1, 6) << 32) | (2**32 - 1 - 7)
    wide = torch.full((1, 6), -7, dtype=torch.int32)
    ops.emit(wide[:, :4], runs, torch.tensor([[6], [99]]), by_position=False, shard=None)
    assert wide.tolist() == [[7, 7, 7, 7, -7, -7]]


def test_certificate_by_hand() -> None:
    """Padding or a strictly lower score at the end of every run; equal scores do not do."""
    score = torch.tensor([5, 3, 3]) << 32
    threshold = score[1:2]
    for last, certain in ((PAD, True), (2 << 32, True), ((3 << 32) | 1, False), (4 << 32, False)):
        runs = torch.tensor([[[int(score[0]), last]], [[int(score[1]), PAD]]])
        assert ops.certify(runs, threshold).tolist() == [certain]
    assert ops.certify(torch.full((2, 1, 1), PAD), torch.tensor([PAD])).tolist() == [True]


def test_pack_sorts_and_clamps() -> None:
    """Score descending, then id ascending; short rows and absent ids become padding."""
    run = torch.full((3, 4), 77)
    scores = torch.tensor([[1.0, 2, 2, 9], [5, 6, 7, 8], [5, 6, 7, 8]])
    ids = torch.tensor([[8, 6, 4, -1], [0, 1, 2, 3], [0, 1, 2, 3]], dtype=torch.int32)
    ops.pack(run, scores, ids, torch.tensor([9, 2, -1]), shard=WHOLE, mask_neg_inf=True)
    assert (run[:, :-1] >= run[:, 1:]).all()
    lengths = (run > PAD).sum(1)[None]
    out = torch.zeros(3, 4, dtype=torch.int32)
    ops.emit(out, run[None], lengths, by_position=False, shard=None)
    assert out.tolist() == [[4, 6, 8, -1], [1, 0, -1, -1], [-1] * 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pack_logits_looks_scores_up(dtype: torch.dtype) -> None:
    """The same runs as from scores, whatever stands around the rows' own columns."""
    _, ids = candidates(70, 9)
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(70, 80, generator=rng).to(dtype)[:, :60]
    starts = torch.randint(0, 20, (70,), generator=rng)
    scores = logits.gather(1, ids + starts[:, None]).float()
    want, got = torch.empty(2, 70, 9, dtype=torch.int64)
    ops.pack(want, scores, ids, None, shard=WHOLE, mask_neg_inf=True)
    ops.pack_logits(got, logits, ids, starts, None, shard=WHOLE, mask_neg_inf=True)
    assert torch.equal(want, got)


@pytest.mark.parametrize("width", [0, 1, 5])
def test_pack_logits_reads_existing_columns_only(width: int) -> None:
    """Ids and starts far outside, either way, are padding and not an access."""
    far = [-(2**31), -6, -1, 0, 4, 5, 2**31 - 1]
    ids = torch.tensor([far] * len(far), dtype=torch.int32)
    starts = torch.tensor(far, dtype=torch.int32)
    run = torch.full((len(far), len(far)), 77)
    logits = torch.ones(len(far), width)
    ops.pack_logits(run, logits, ids, starts, None, shard=WHOLE, mask_neg_inf=True)
    columns = np.array(far)[None] + np.array(far)[:, None]
    exists = (np.array(far) >= 0)[None] & (columns >= 0) & (columns < width)
    assert (run > PAD).sum(1).tolist() == exists.sum(1).tolist()


class Allocations(TorchDispatchMode):
    """Remembers the most bytes that one operation returned in new memory."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {0} | {id_of(each) for each in tree_leaves((args, kwargs))}
        fresh = [each for each in tree_leaves(result) if id_of(each) not in known]
        self.largest = max([self.largest, *(each.nbytes for each in fresh)])
        return result


def id_of(value: Any) -> int:
    """A tensor's memory; 0 for anything else."""
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def test_temporaries_do_not_grow_with_the_rows() -> None:
    """No row-major copy of all candidates: ten times the rows need no larger temporary."""
    k, size = 64, 4
    largest = []
    for rows in (128, 1280):
        scores, ids = candidates(rows, k)
        runs = torch.empty(size, rows, k, dtype=torch.int64)
        out = torch.empty(rows, k, dtype=torch.int32)
        with Allocations() as seen:  # type: ignore[no-untyped-call]
            for rank in range(size):
                shard = Shard(rank, size, 1)
                ops.pack(runs[rank], scores, ids, None, shard=shard, mask_neg_inf=True)
            lengths = ops.prefix_lengths(runs, k)
            ops.certify(runs, ops.threshold(runs, lengths, k))
            ops.emit(out, runs, lengths, by_position=True, shard=None)
        largest.append(seen.largest)
    assert largest[0] == largest[1] == size * ops.BLOCK_ROWS * k * 8
