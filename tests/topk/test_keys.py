"""The total order of candidates."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcp_comm.topk import keys

INF = math.inf
TINY = 1e-45
EDGES = torch.tensor(
    [-INF, -3e38, -65505.0, -1.0, -1e-38, -TINY, 0.0, TINY, 1e-38, 1.0, 1.0000001, 65504.0, INF]
).tolist()

scores = st.floats(width=32) | st.sampled_from(EDGES)
ids = st.integers(0, 2**31 - 1) | st.sampled_from([0, 1, 2**24, 2**24 + 1, 2**31 - 1])


def key(score: float, token: int, *, mask_neg_inf: bool = True) -> int:
    """One key."""
    one = keys.encode(torch.tensor([score]), torch.tensor([token]), mask_neg_inf=mask_neg_inf)
    return int(one[0])


@pytest.fixture
def flushing() -> Iterator[None]:
    """Treat subnormals as zero in arithmetic, as an engine may have asked for."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    yield
    torch.set_flush_denormal(False)


@given(scores, ids, scores, ids)
def test_keys_order_by_score_then_by_smaller_id(a: float, i: int, b: float, j: int) -> None:
    """Python's own comparison of (score, -id), which knows -0.0 == 0.0."""
    if math.isnan(a) or math.isnan(b):
        assert keys.PAD in (key(a, i), key(b, j))
        return
    want = (a > b or (a == b and i < j)) - (a < b or (a == b and i > j))
    one, other = key(a, i, mask_neg_inf=False), key(b, j, mask_neg_inf=False)
    assert (one > other) - (one < other) == want


@given(scores, ids)
def test_keys_give_back_score_and_id(score: float, token: int) -> None:
    """Bit for bit, but for the sign of zero."""
    one = torch.tensor([key(score, token)])
    wins = not math.isnan(score) and score != -INF
    assert keys.ids_of(one).tolist() == [token if wins else -1]
    assert keys.ids_of(keys.id_words(one)).tolist() == [token if wins else -1]
    assert keys.scores_of(one).tolist() == [score if wins else -INF]
    assert math.copysign(1, keys.scores_of(one).item()) > 0 or score != 0


@pytest.mark.usefixtures("flushing")
def test_subnormals_keep_their_order_when_arithmetic_flushes_them() -> None:
    """Only bits are compared."""
    bits = torch.tensor([1, 2, 0, -(2**31), -(2**31) + 1], dtype=torch.int32)
    encoded = keys.encode(bits.view(torch.float32), torch.arange(5), mask_neg_inf=True)
    assert encoded.argsort(descending=True).tolist() == [1, 0, 2, 3, 4]


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1, -0x400000, -0x7FFFFF])
def test_every_nan_is_padding(bits: int) -> None:
    """Signalling or quiet, either sign."""
    nan = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    assert nan.isnan().all()
    assert keys.encode(nan, torch.tensor([3]), mask_neg_inf=False).tolist() == [keys.PAD]


@pytest.mark.parametrize("token", [-1, -(2**40), 2**31, 2**32 - 1, 2**32, 2**40])
def test_ids_that_int32_cannot_hold_are_padding(token: int) -> None:
    """Never another id."""
    assert key(1.0, token) == keys.PAD


def test_neg_inf_is_masked_or_last() -> None:
    """By option; and then still above padding."""
    assert key(-INF, 0) == keys.PAD
    assert keys.PAD < key(-INF, 2**31 - 1, mask_neg_inf=False) < key(-3.4e38, 2**31 - 1)
    assert key(INF, 0) < keys.BEST


def test_any_strides_broadcast_ids_and_autograd_tensors() -> None:
    """What callers have at hand."""
    wide = torch.randn(3, 8, requires_grad=True)
    got = keys.encode(wide[:, ::2], torch.arange(4), mask_neg_inf=True)
    plain, ids = wide.detach()[:, ::2].clone(), torch.arange(4).repeat(3, 1)
    want = keys.encode(plain, ids, mask_neg_inf=True)
    assert torch.equal(got, want)
    assert not got.requires_grad
