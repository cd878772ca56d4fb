"""The kernels of the local top-K, emulated, against the oracle: bit for bit, in every order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.kernels.cuda import local
from tests.kernels.simt.build import missing
from tests.kernels.simt.guards import fenced, unreadable
from tests.kernels.topk_cases import (
    Call,
    check,
    emulator,
    found,
    sampled_vectors,
    scores_of,
    winners,
)
from tests.topk.scores import KINDS, drawn

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("topk"),
]

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
INF = float("inf")
SEEDS = (0, 1, 2, 5)
ONE, TWO = ["topk_2048"], ["topk_list_2048", "topk_join_2048"]
LONG = 16385
"""Columns that no block's registers hold."""


def rows_of(kind: str, rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(drawn(kind, rows, width, np.random.default_rng(seed)))


def with_three_edges(wide: torch.Tensor) -> int:
    """Return a column of float32 rows that is three before the first vector."""
    return next(n for n in range(4) if (wide.data_ptr() // 4 + n) % 4 == 1)


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(list(KINDS)),
    rows=st.integers(0, 3),
    width=st.one_of(st.integers(0, 30), st.integers(4080, 4120), st.integers(8190, 25000)),
    k=st.one_of(st.integers(1, 60), st.integers(1000, 2048)),
    dtype=st.sampled_from(DTYPES),
    masked=st.booleans(),
    parts=st.sampled_from([0, 2, 3, 32]),
    beside=st.sampled_from([0, LONG]),
)
def test_winners_equal_the_oracle(
    seed: int,
    kind: str,
    rows: int,
    width: int,
    k: int,
    dtype: torch.dtype,
    masked: bool,
    parts: int,
    beside: int,
) -> None:
    """Any starts and lengths, also past the width; rows at any address, and columns beside."""
    rng = np.random.default_rng(seed)
    wide = torch.from_numpy(drawn(kind, rows, width + 5, rng)).to(dtype)
    wide = torch.nn.functional.pad(wide, (0, beside), value=INF)
    logits = wide[:, seed % 5 : seed % 5 + width + beside]
    starts = torch.from_numpy(rng.integers(-3, 9, rows)).to(torch.int32)
    lengths = torch.from_numpy(rng.integers(width - 9, width + 9, rows))
    columns = [(None, None), (starts, lengths), (starts.long(), None), (None, lengths.int())]
    first, count = columns[seed % 4]
    call = Call(k, first, count, masked, parts)
    check(logits, call, seed % 7, (0xA5, 0xFF)[seed % 2])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["equal", "plateau", "ulps", "few"])
def test_ties_at_the_threshold_go_to_the_smallest_positions(kind: str, seed: int) -> None:
    """By one block and by several, whose lists do not fit together."""
    logits = rows_of(kind, 1, 33000)
    for k, parts in ((2048, 0), (2048, 4), (3, 4), (1, 0)):
        assert check(logits, Call(k, parts=parts), seed) == (TWO if parts else ONE)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_rows_that_registers_hold(kind: str) -> None:
    """As wide as each kernel takes, and all but; few winners, and as many as there may be."""
    for width, k, name in (
        (4096, 2048, "2048_2"),
        (4097, 2047, "2048_4"),
        (8192, 3, "2048_4"),
        (8193, 2048, "2048_8"),
        (16384, 2048, "2048_8"),
        (8192, 4096, "4096_2"),
        (8193, 2049, "4096_4"),
    ):
        for logits in (rows_of(kind, 2, width), rows_of(kind, 1, width + 3).half()[:, 3:]):
            launched = check(logits, Call(k, torch.tensor([0, 1])[: len(logits)]), width % 3)
            assert launched == [f"topk_short_{name}"]


def test_infinite_scores_leave_the_rest_in_one_bin() -> None:
    """The last winner is found by its bits, be it one of them or not; few have their own bin."""
    for infinite in (1, 700, 2500):
        logits = rows_of("normal", 1, 9000)
        logits[0, torch.randperm(9000)[:infinite]] = INF
        for k in (1, 700, 2048):
            check(logits, Call(k), k)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_buffer_that_fills_again_and_again(seed: int) -> None:
    """Ascending scores: whatever is kept, all that follows is better."""
    logits = torch.arange(20001, dtype=torch.float32)[None] / 7
    for parts in (0, 2):
        check(logits, Call(2048, parts=parts), seed)
        check(-logits, Call(2048, parts=parts), seed)


def test_a_buffer_that_is_just_full() -> None:
    """Equal scores among NaN, as many as the buffer holds, more or less, and six at the edges."""
    width = 3 + LONG // 4 * 4 + 3
    for valid in range(4086, 4098):
        wide = fenced(torch.full((1, width + 5), float("nan")))
        start = with_three_edges(wide)
        logits = wide[:, start : start + width]
        logits[0, :3] = logits[0, -3:] = 1
        logits[0, 3 : 3 + valid] = 1
        check(logits, Call(2048))


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (1.0, 1.0 + 2**-23),
        (0.0, 1e-45),
        (-0.0, 1e-45),
        (-1e-45, 0.0),
        (-1e-45, -0.0),
        (3.4028234663852886e38, INF),
        (INF, INF),
        (-INF, -3.4028234663852886e38),
    ],
)
def test_the_next_score_above_a_plateau_wins(low: float, high: float) -> None:
    """The threshold rises by one step of float32, and no further."""
    logits = torch.full((1, 20001), low)
    logits[:, 17000:18500] = high
    for parts in (0, 3):
        check(logits, Call(2048, mask_neg_inf=False, parts=parts))


@pytest.mark.parametrize("parts", [0, 3])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sample_that_misleads(sign: int, parts: int) -> None:
    """All that the first threshold is estimated from is better than the rest, or worse."""
    logits = fenced(rows_of("normal", 1, 20000))
    seen = sampled_vectors(logits.shape[1] // 4)
    logits.view(-1, 4)[torch.from_numpy(seen)[: 480 if sign > 0 else None]] += sign * 100
    for k in (2048, 900):
        check(logits, Call(k, parts=parts))


@pytest.mark.parametrize("seed", SEEDS)
def test_edges_survive_that_a_search_starts_over(seed: int) -> None:
    """Too few reach the threshold, and those are found last: warps may still be writing them."""
    wide = fenced(torch.full((1, LONG + 8), float("nan")))
    start = with_three_edges(wide)
    row = wide[0, start : start + 3 + 8000]
    row.copy_(rows_of("normal", 1, 3 + 8000)[0])
    row[:3] = 50
    vectors = row[3:].view(-1, 4)
    vectors[torch.from_numpy(sampled_vectors(len(vectors)))[-170:]] = 100 + torch.rand(170, 4)
    check(wide, Call(2048, torch.tensor([start]), torch.tensor([len(row)])), seed)


@pytest.mark.parametrize("parts", [0, 3])
def test_edges_do_not_make_up_for_too_high_a_threshold(parts: int) -> None:
    """A few less than k reach it; all edges are worse than every other column."""
    k, width = 2048, 40006
    logits = rows_of("normal", 1, width + 1)[:, 1:]
    assert logits.data_ptr() % 16 == 4  # three edges before the first vector, and three behind
    vectors = logits[:, 3 : width - 3].view(-1, 4)
    logits[:, :3] = logits[:, -3:] = -100
    seen = torch.from_numpy(sampled_vectors(len(vectors)))
    best = torch.cat([seen, torch.from_numpy(np.setdiff1d(np.arange(len(vectors)), seen.numpy()))])
    vectors[best[:60]] = 100.0
    vectors[best[len(seen) :][: k // 4 - 60 - 1]] = 100.0
    assert int((logits == 100).sum()) == k - 4
    check(logits, Call(k, parts=parts))


@pytest.mark.parametrize("above", [0, 1, 1024, 2047, 2048])
def test_parts_are_full_of_ties(above: int) -> None:
    """More than one block has room for; the first ones win, and what is above them anywhere."""
    logits = fenced(torch.zeros(2, 5 * 8192 + 77))
    for row in logits:
        row[torch.randperm(len(row))[:above]] = torch.rand(above) + 1
    for parts in (2, 5, 32):
        for k in (2048, 2000):
            check(logits, Call(k, parts=parts))


@pytest.mark.parametrize("parts", [0, 3, 32])
def test_ties_at_the_edges_win_in_their_places(parts: int) -> None:
    """Three before the first vector precede all others, three behind the last follow them."""
    width = 40006
    logits = rows_of("normal", 1, width + 1).sub_(100)[:, 1:]
    assert logits.data_ptr() % 16 == 4
    first, others = torch.randperm(8000) + 3, torch.randperm(20000) + 17000
    logits[0, first[:600]] = logits[0, others[:100]] = 2
    logits[0, :3] = logits[0, -3:] = 1
    logits[0, first[600:1100]] = logits[0, others[100:1600]] = 1
    for ties in (1, 3, 4, 503, 504, 506, 507, 2003, 2004, 2006, 2007):
        check(logits, Call(700 + ties, parts=parts))


@pytest.mark.parametrize("width", [3000, 20000])
def test_fewer_than_k_valid_scores_below_any_estimate(width: int) -> None:
    """Valid scores that the sample sees or not, NaN and -inf around them."""
    for filler in (float("nan"), -INF):
        for valid in (1, 40, 2047, 2049):
            logits = torch.full((1, width), filler)
            logits[0, torch.randperm(width)[:valid]] = torch.randn(valid)
            for parts in (0, 3):
                check(logits, Call(2048, parts=parts))
                check(logits, Call(2048, mask_neg_inf=False, parts=parts))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_beside_a_row_is_read(dtype: torch.dtype) -> None:
    """Rows at every distance from a vector's bounds, up to memory that cannot be read."""
    for width in (1, 2, 3, 4, 5, 6, 7, 11, 4099, LONG + 6):
        logits = fenced(torch.full((4, width), INF).to(dtype))
        for start in range(min(5, width)):
            logits.fill_(INF)
            own = logits[:, start:]
            own.copy_(rows_of("normal", *own.shape))
            starts = torch.full((4,), start)
            check(logits, Call(9, starts))
            lengths = torch.tensor([width, 1, max(0, width - start - 1), 0])
            for row, length in enumerate(lengths.tolist()):
                own[row, length:] = INF
            check(logits, Call(9, starts, lengths, parts=8))


def test_rows_without_columns_are_not_read() -> None:
    """No length, no width, or a start beyond it; also where blocks share rows."""
    extremes = torch.tensor([2**62, -(2**62), 2**31, 30000])
    zeros = torch.tensor([0, -1, -(2**62), 0], dtype=torch.int64)
    for width, parts in ((3000, 0), (30000, 0), (30000, 8)):
        logits = unreadable(4, width, dtype=torch.float32)
        for starts, lengths in ((None, zeros), (extremes, None), (extremes, extremes)):
            scores, ids = torch.zeros(4, 5), torch.zeros(4, 5, dtype=torch.int32)
            scratch = torch.zeros(4, parts, 11, dtype=torch.int64)
            given = logits, starts, lengths
            local.write_topk(
                emulator(5, 0), scores, ids, *given, mask_neg_inf=True, scratch=scratch
            )
            assert (ids == -1).all()
            assert (scores == -INF).all()


@pytest.mark.filterwarnings("ignore:invalid value")  # NaN that signal
def test_every_half_is_what_it_is() -> None:
    """All 65536 bit patterns of both formats."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        halves = bits.view(dtype)[None]
        for part in (halves, -halves):
            check(part, Call(2048, mask_neg_inf=False))
            check(part[:, 0:40000:13].contiguous(), Call(2048, mask_neg_inf=False))


@pytest.mark.parametrize("parts", [0, 4])
def test_more_winners_than_the_smaller_kernels_have(parts: int) -> None:
    """K beyond 2048, with fewer columns than that too."""
    logits = rows_of("normal", 2, 33001)
    for k in (2049, 4096):
        launched = check(logits, Call(k, parts=parts), 1)
        assert launched == (["topk_list_4096", "topk_join_4096"] if parts else ["topk_4096"])
    check(logits[:, :3000], Call(4096), 2)
    check(rows_of("plateau", 1, 20000), Call(4096, parts=parts))


@pytest.mark.parametrize("beside", [0, LONG])
@pytest.mark.parametrize("lengths", [None, torch.tensor([2**63 - 1])])
def test_positions_beyond_the_largest_are_padding(
    lengths: torch.Tensor | None, beside: int
) -> None:
    """A start far below 0 makes positions that large."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0] + beside * [float("nan")]])
    scores, ids = torch.empty(1, 4), torch.empty(1, 4, dtype=torch.int32)
    given = logits, torch.tensor([3 - 2**31]), lengths
    scratch = torch.empty(1, 0, 9, dtype=torch.int64)
    local.write_topk(emulator(4, 0), scores, ids, *given, mask_neg_inf=True, scratch=scratch)
    assert ids.tolist() == [[2**31 - 1, 2**31 - 2, 2**31 - 3, -1]]
    assert scores.tolist() == [[3.0, 2.0, 1.0, -INF]]
    check(logits, Call(4, torch.tensor([2]), lengths))


@pytest.mark.parametrize(
    ("width", "multiprocessors", "launched"),
    [(9001, 8, ["topk_short_2048_8"]), (LONG, 1, ONE), (LONG, 8, TWO)],
)
def test_logits_and_columns_of_any_layout(
    width: int, multiprocessors: int, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gaps between columns and between the integers, as `local_topk` takes them."""
    monkeypatch.setattr(local, "_multiprocessors", lambda _: multiprocessors)
    logits = rows_of("specials", 3, 2 * width)[:, ::2]
    logits[:, 17] = -0.0
    lengths = torch.tensor([width, 5, 0, 100, 8000, 7])[::2]
    starts = torch.tensor([[3, 1], [0, 1], [-2, 1]], dtype=torch.int32)[:, 0]
    for masked in (True, False):
        for k in (1, 700):
            launcher = emulator(k, 2)
            monkeypatch.setattr(local, "cuda_launcher", lambda _, made=launcher: made)
            scores, ids = found(local.local_topk, logits, k, starts, lengths, masked=masked)
            call = Call(k, starts, lengths, masked)
            want = winners(logits, call)
            assert ids.tolist() == want.tolist()
            expected = scores_of(logits, call, want)
            assert torch.equal(scores.view(torch.int32), expected.view(torch.int32))
            assert (scores.dtype, ids.dtype) == (torch.float32, torch.int32)
            assert launcher.launches == launched


@pytest.mark.parametrize(
    ("rows", "width", "k", "parts"),
    [
        (1, 262144, 2048, 32),
        (8, 262144, 2048, 32),
        (32, 262144, 2048, 8),
        (66, 262144, 1, 4),
        (67, 262144, 1, 0),
        (32, 262144, 2049, 4),
        (66, 262144, 4096, 2),
        (1, 16384, 2048, 0),
        (1, 16384, 4096, 0),
        (1, 16385, 2048, 3),
        (1, 0, 1, 0),
        (0, 8193, 1, 0),
    ],
)
def test_blocks_share_rows_that_are_few_and_long(rows: int, width: int, k: int, parts: int) -> None:
    """As far as multiprocessors have room, a row has tiles, and a warp has lanes."""
    assert local.parts_of_a_row(rows, width, k, 132) == parts
