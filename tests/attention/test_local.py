"""A rank's own attention against dense attention in float64."""

from dataclasses import replace

import pytest
import torch

from dcp_comm.attention import Attended, local, sparse_attention
from dcp_comm.errors import CommArgumentError
from tests.attention.cases import Case, compare

MHA = Case(1, rows=9, tokens=30, heads=4, groups=4, key_dim=6, value_dim=5)
GQA = replace(MHA, heads=6, groups=2, seed=1)
MLA = replace(MHA, groups=1, value_dim=4, prefix=True, seed=2)
SHAPES = [pytest.param(case, id=name) for name, case in (("mha", MHA), ("gqa", GQA), ("mla", MLA))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("base", ["e", "2"])
@pytest.mark.parametrize("case", SHAPES)
def test_it_is_dense_attention(case: Case, base: str, dtype: torch.dtype) -> None:
    case = replace(case, base=base, dtype=dtype)
    compare(case, slice(None), *case.attend(0))


@pytest.mark.parametrize("elements", [1, 700])
def test_blocks_do_not_show(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = GQA.attend(0)
    monkeypatch.setattr(local, "BLOCK_ELEMENTS", elements)
    for one, other in zip(GQA.attend(0), whole, strict=True):
        torch.testing.assert_close(one, other)


def test_counts_cut_and_holes_count_as_none() -> None:
    """-1 alone says the same as counts; what stands behind a count is not looked at."""
    keys, values, winners, counts = MHA.shard(0)
    told = sparse_attention(MHA.q, keys, values, winners, scale=1.0)
    behind = torch.arange(winners.shape[1]) >= counts[:, None]
    stale = winners.masked_fill(behind, 2**31 - 1)
    cut = sparse_attention(MHA.q, keys, values, stale, counts, scale=1.0)
    order = torch.randperm(winners.shape[1], generator=torch.Generator().manual_seed(0))
    holes = sparse_attention(MHA.q, keys, values, winners[:, order], scale=1.0)
    for one, other, third in zip(told, cut, holes, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, third)


@pytest.mark.parametrize(("rows", "tokens", "width"), [(0, 5, 3), (3, 0, 3), (3, 5, 0)])
def test_nothing_to_attend_to_is_zero(rows: int, tokens: int, width: int) -> None:
    q, keys = torch.randn(rows, 4, 3), torch.full((tokens, 2, 3), torch.nan)
    winners = torch.full((rows, width), -1, dtype=torch.int32)
    out, lse = sparse_attention(q, keys, 2, winners, scale=1.0)
    assert torch.equal(out, torch.zeros(rows, 4, 2))
    assert torch.equal(lse, torch.full((rows, 4), -torch.inf))


def test_any_strides_and_the_callers_out() -> None:
    """Slices of larger buffers go in; results land where the caller says, outside autograd."""
    keys, values, winners, counts = GQA.shard(0)
    wide = torch.zeros(len(keys), 2, 20)
    wide[..., 3:9], wide[..., 9:14] = keys, values
    q = GQA.q.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    out = Attended.allocate(GQA.rows, 6, 5, torch.float32, "cpu")
    result = sparse_attention(
        q, wide[..., 3:9], wide[..., 9:14], winners, counts, scale=GQA.scale, out=out
    )
    assert result is out
    assert not out.out.requires_grad
    compare(GQA, slice(None), *out)


def test_large_logits_do_not_overflow() -> None:
    case = replace(MHA, seed=5)
    case.q.mul_(300)
    out, lse = case.attend(0)
    want, want_lse = case.expected
    torch.testing.assert_close(out, torch.from_numpy(want).float(), atol=1e-2, rtol=1e-3)
    torch.testing.assert_close(lse, torch.from_numpy(want_lse).float(), atol=1e-2, rtol=1e-5)


Q, KEYS = torch.zeros(2, 4, 3), torch.zeros(5, 2, 3)
WINNERS = torch.zeros(2, 6, dtype=torch.int32)
RIGHT = {"q": Q, "keys": KEYS, "values": 2, "winners": WINNERS, "scale": 1.0}


@pytest.mark.parametrize(
    ("argument", "change", "got"),
    [
        ("q", {"q": Q.double()}, "torch.float64"),
        ("q", {"q": Q[0]}, "shape"),
        ("keys", {"keys": KEYS.bfloat16()}, "torch.bfloat16"),
        ("keys", {"keys": KEYS[..., :2]}, "shape"),
        ("keys", {"keys": torch.zeros(5, 3, 3)}, "3 key heads"),
        ("keys", {"keys": torch.zeros(5, 0, 3)}, "0 key heads"),
        ("values", {"values": torch.zeros(4, 2, 2)}, "shape"),
        ("values", {"values": 4}, "4, need a torch.Tensor, or an int in 1 .. 3"),
        ("values", {"values": True}, "True"),
        ("winners", {"winners": WINNERS.long()}, "torch.int64"),
        ("winners", {"winners": WINNERS[:1]}, "shape"),
        ("winners", {"winners": WINNERS + 5}, "5, need rows of keys, below 5"),
        ("counts", {"counts": torch.ones(2)}, "torch.float32"),
        ("scale", {"scale": float("nan")}, "nan"),
        ("base", {"base": "10"}, "'10'"),
        ("out", {"out": (Q, Q)}, "tuple"),
        ("out.out", {"out": Attended(torch.zeros(2, 4, 3), torch.zeros(2, 4))}, "shape"),
        ("out.lse", {"out": Attended(torch.zeros(2, 4, 2), torch.zeros(4, 2).T)}, "strides"),
        ("out", {"out": Attended(Q.view(-1)[:16].view(2, 4, 2), torch.zeros(2, 4))}, "overlaps"),
    ],
)
def test_what_does_not_fit_is_refused(argument: str, change: dict[str, object], got: str) -> None:
    arguments = {**RIGHT, **change}
    with pytest.raises(CommArgumentError) as caught:
        sparse_attention(**arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"sparse_attention: {argument}: ")
    assert got in str(caught.value)
