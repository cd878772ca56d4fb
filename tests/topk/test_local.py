"""The local top-K against the oracle, by value at the edges, and its refusals."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.errors import CommArgumentError
from dcp_comm.kernels import torch_topk
from dcp_comm.topk.local import local_topk
from tests import oracle
from tests.topk.local_cases import check_local
from tests.topk.scores import KINDS, drawn

NAN, INF = float("nan"), float("inf")


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(list(KINDS)),
    rows=st.integers(0, 6),
    width=st.integers(0, 40),
    k=st.integers(1, 50),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    masked=st.booleans(),
)
def test_local_topk_equals_the_oracle(
    seed: int, kind: str, rows: int, width: int, k: int, dtype: torch.dtype, masked: bool
) -> None:
    """Any starts and lengths, also past the width."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(drawn(kind, rows, width, rng)).to(dtype)
    starts, lengths = rng.integers(0, width + 3, rows), rng.integers(-2, width + 3, rows)
    check_local(logits, k, starts, lengths, mask_neg_inf=masked)


@pytest.mark.parametrize("k", [1, 37, 2048, 2051])
def test_rows_are_cut_into_blocks_without_a_seam(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one row, of some rows, of all."""
    rng = np.random.default_rng(k)
    logits = torch.from_numpy(drawn("few", 11, 2500, rng))
    for elements in (1, 7500, 1 << 20):
        monkeypatch.setattr(torch_topk, "BLOCK_ELEMENTS", elements)
        check_local(logits, k, np.zeros(11, dtype=int), np.full(11, 2500))


def test_scores_are_those_of_the_ids() -> None:
    """Scores come back exactly, -inf behind the winners; strided logits are welcome."""
    wide = torch.tensor([[1.5, 9, -0.0, 9, NAN, 9, 7.25, 9]])
    scores, ids = local_topk(wide[:, ::2], 4)
    assert ids.tolist() == [[3, 0, 1, -1]]
    assert scores.tolist() == [[7.25, 1.5, 0.0, -INF]]
    assert (scores.dtype, ids.dtype) == (torch.float32, torch.int32)


def test_no_starts_and_no_lengths_mean_whole_rows() -> None:
    """And requires_grad logits give plain results, inference mode works."""
    logits = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
    with torch.inference_mode():
        assert local_topk(logits, 2)[1].tolist() == [[0, 2]]
    assert not local_topk(logits, 2)[0].requires_grad


def test_neg_inf_may_win_last() -> None:
    """With mask_neg_inf=False, above padding, with a real id."""
    logits = torch.tensor([[-INF, 0.0, NAN]])
    assert local_topk(logits, 3)[1].tolist() == [[1, -1, -1]]
    assert local_topk(logits, 3, mask_neg_inf=False)[1].tolist() == [[1, 0, -1]]


def test_given_tensors_are_overwritten_and_returned() -> None:
    """All of them, padding included."""
    out = torch.full((2, 4), 7.0), torch.full((2, 4), 7, dtype=torch.int32)
    assert local_topk(torch.tensor([[1.0, 2.0], [NAN, -3.0]]), 4, out=out) is out
    assert out[0].tolist() == [[2.0, 1.0, -INF, -INF], [-3.0, -INF, -INF, -INF]]
    assert out[1].tolist() == [[1, 0, -1, -1], [1, -1, -1, -1]]


def test_columns_before_the_first_are_not_read() -> None:
    """A negative start shifts positions and reads nothing that is not there."""
    logits = torch.tensor([[5.0, 6.0, 7.0]])
    _, ids = local_topk(logits, 4, starts=torch.tensor([-2]), lengths=torch.tensor([4]))
    assert ids.tolist() == [[3, 2, -1, -1]]


SHARED, OWN = torch.zeros(12), torch.zeros(6)
GOOD: dict[str, Any] = {"logits": SHARED[2:].view(2, 5), "k": 3}


@pytest.mark.parametrize(
    ("argument", "value", "got"),
    [
        ("logits", torch.zeros(2, 5, dtype=torch.float64), "float64"),
        ("logits", torch.zeros(5), r"\(5,\)"),
        ("logits", [[0.0]], "list"),
        ("k", 0, "0"),
        ("k", True, "True"),
        ("k", 2.0, "2.0"),
        ("starts", torch.zeros(3, dtype=torch.int32), r"\(3,\)"),
        ("lengths", torch.zeros(2), "float32"),
        ("lengths", torch.zeros(2, 1, dtype=torch.int64), r"\(2, 1\)"),
        ("lengths", [1, 2], "list"),
        ("starts", torch.zeros(2, dtype=torch.int64, device="meta"), "meta"),
        ("out", torch.zeros(2, 3), "Tensor"),
        ("out scores", (torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.int32)), r"\(2, 4\)"),
        ("out ids", (torch.zeros(2, 3), torch.zeros(2, 3)), "float32"),
        ("out ids", (torch.zeros(2, 3), torch.zeros(3, 2).int().T), r"\(1, 2\)"),
        ("out", (SHARED[:6].view(2, 3), torch.zeros(2, 3).int()), "overlaps a torch.float32"),
        ("out", (OWN.view(2, 3), OWN.view(torch.int32).view(2, 3)), "overlaps a torch.int32"),
    ],
)
def test_refusals_name_the_argument(argument: str, value: object, got: str) -> None:
    """Argument, what came, what was needed."""
    with pytest.raises(CommArgumentError, match=rf"local_topk: {argument}: got .*{got}.*, need "):
        local_topk(**{**GOOD, argument.split(maxsplit=1)[0]: value})


def test_oracle_and_product_are_two_things() -> None:
    """The oracle never calls what it judges."""
    assert "dcp_comm" not in vars(oracle)
