"""Gathered rows: every token is where `places` says, in any dirty buffer."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcp_comm.attention import RowGather, sparse_attention
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, WorkspaceExhausted
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import BufferSpec, Workspace
from tests import oracle
from tests.attention.cases import Case, compare


def gathered(
    comm: Communicator, rows: Tensor, interleave: int, lengths: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """Gather requests one after another in one locked, poisoned workspace."""
    gather = RowGather(comm, 40, rows.shape[1], rows.dtype, interleave)
    workspace = Workspace(debug=True)
    workspace.reserve(*gather.specs(), owner="rows")
    workspace.lock()
    workspace.take(BufferSpec("all", (workspace.nbytes,), torch.uint8))[0].fill_(0xA5)
    results = []
    for length in lengths:
        mine = rows[list(oracle.deal(length, comm.size, interleave)[comm.rank])]
        result = gather(mine, length, workspace=workspace)
        ids = torch.arange(-1, length, dtype=torch.int32)
        places = gather.places(ids, length)
        results.append((result[places[1:].long()].clone(), places[:1]))
        del result
    return results


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 5),
    interleave=st.integers(1, 4),
    lengths=st.lists(st.integers(0, 40), max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.uint8]),
)
def test_every_token_is_in_its_place(
    size: int, interleave: int, lengths: list[int], dtype: torch.dtype
) -> None:
    rows = torch.arange(40 * 3).view(40, 3).to(dtype)
    for results in run_ranks(gathered, size, rows, interleave, lengths):
        for length, (found, none) in zip(lengths, results, strict=True):
            assert torch.equal(found, rows[:length])
            assert none.tolist() == [-1]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_attention_over_gathered_rows_is_dense_attention(size: int) -> None:
    """The winners of output ``global``, through `places`; every rank does all heads itself."""
    case = replace(MLA, size=size, interleave=2)

    def fn(comm: Communicator) -> None:
        gather = RowGather(comm, case.tokens, case.key_dim, case.dtype, case.interleave)
        hand = oracle.deal(case.tokens, size, case.interleave)[comm.rank]
        rows = gather(case.keys[list(hand), 0], case.tokens)
        winners = torch.full((case.rows, case.width), -1, dtype=torch.int32)
        for row, tokens in enumerate(case.winners):
            winners[row, : len(tokens)] = torch.from_numpy(tokens)
        places = gather.places(winners, case.tokens)
        keys = rows.unflatten(1, (1, -1))
        attended = sparse_attention(case.q, keys, case.value_dim, places, scale=case.scale)
        compare(case, slice(None), *attended)

    run_ranks(fn, size)


MLA = Case(2, rows=9, tokens=31, heads=4, groups=1, key_dim=6, value_dim=4, prefix=True)


@pytest.mark.parametrize(
    ("change", "got"),
    [
        ({"rows": torch.zeros(4, 3)}, "rows: got shape (4, 3), need shape (5, 3)"),
        ({"rows": torch.zeros(5, 3).double()}, "rows: got torch.float64"),
        ({"length": 41}, "length: got 41"),
        ({"length": -1}, "length: got -1"),
        ({"scratch": []}, "scratch: got 0 views, need 1"),
        ({"scratch": [], "workspace": Workspace()}, "workspace: got scratch as well"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], got: str) -> None:
    """On one rank alone, before anything is sent; the group lives on."""

    def fn(comm: Communicator) -> None:
        gather = RowGather(comm, 40, 3, torch.float32)
        right: dict[str, object] = {"rows": torch.zeros(5, 3), "length": 10}
        if comm.rank == 0:
            with pytest.raises(CommArgumentError) as caught:
                gather(**{**right, **change})  # type: ignore[arg-type]
            assert got in str(caught.value)
        assert gather(**right).shape == (10, 3)  # type: ignore[arg-type]

    run_ranks(fn, 2)


@pytest.mark.parametrize("wrong", [{"max_tokens": 0}, {"width": True}, {"dtype": "x"}])
def test_options_are_checked(wrong: dict[str, object]) -> None:
    right = {"max_tokens": 4, "width": 4, "dtype": torch.int8}

    def fn(comm: Communicator) -> None:
        with pytest.raises(CommArgumentError, match=next(iter(wrong))):
            RowGather(comm, **{**right, **wrong})  # type: ignore[arg-type]

    run_ranks(fn, 1)


def test_more_than_was_reserved_is_refused() -> None:
    def fn(comm: Communicator) -> None:
        workspace = Workspace()
        workspace.reserve(*RowGather(comm, 8, 3, torch.float32).specs(), owner="rows")
        workspace.lock()
        with pytest.raises(WorkspaceExhausted, match="rows"):
            RowGather(comm, 400, 3, torch.float32)(torch.zeros(200, 3), 400, workspace=workspace)

    run_ranks(fn, 2)
