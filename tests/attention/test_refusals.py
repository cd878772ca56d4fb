"""What an LSE merge refuses: with the argument's name, before anything is sent."""

from typing import Any

import pytest
import torch

import dcp_comm as dc
from dcp_comm.attention import Attended, LseMerge
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommMismatch, WorkspaceExhausted
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import Workspace
from tests.attention.cases import WAYS

OPTIONS: dict[str, Any] = {"max_rows": 5, "heads": 4, "dim": 3}
OUT, LSE = torch.ones(5, 4, 3), torch.zeros(5, 4)
RIGHT: dict[str, Any] = {"partial": OUT, "lse": LSE}


@pytest.mark.parametrize(
    ("argument", "change", "got"),
    [
        ("max_rows", {"max_rows": 0}, "0"),
        ("heads", {"heads": 3}, "3, need a multiple of the 2 ranks"),
        ("heads", {"heads": 0}, "0"),
        ("dim", {"dim": True}, "True"),
        ("dtype", {"dtype": torch.float64}, "torch.float64"),
        ("way", {"way": "ring"}, "'ring'"),
        ("base", {"base": 2}, "2"),
        ("chunk_rows", {"chunk_rows": 0}, "0"),
    ],
)
def test_options(argument: str, change: dict[str, Any], got: str) -> None:
    def fn(comm: Communicator) -> None:
        with pytest.raises(CommArgumentError) as caught:
            LseMerge(comm, **{**OPTIONS, **change})
        assert str(caught.value).startswith(f"LseMerge: {argument}: got {got}")

    run_ranks(fn, 2)


@pytest.mark.parametrize(
    ("argument", "change", "got"),
    [
        ("partial", {"partial": OUT[0]}, "shape (4, 3)"),
        ("partial", {"partial": OUT.bfloat16()}, "torch.bfloat16"),
        ("partial", {"partial": None}, "NoneType"),
        ("partial", {"partial": torch.ones(6, 4, 3), "lse": torch.ones(6, 4)}, "6 rows"),
        ("lse", {"lse": LSE[:4]}, "shape (4, 4)"),
        ("lse", {"lse": LSE.half()}, "torch.float16"),
        ("out", {"out": OUT}, "Tensor"),
        ("out.out", {"out": Attended(OUT.clone(), LSE.clone())}, "shape (5, 4, 3)"),
        ("out.lse", {"out": Attended(OUT[:, :2].clone(), LSE[:, :2])}, "strides"),
        ("out", {"out": Attended(OUT.view(-1)[:30].view(5, 2, 3), LSE[0, :0])}, ""),
        ("scratch", {"scratch": [OUT]}, "1 views, need 2"),
        ("workspace", {"scratch": [], "workspace": Workspace()}, "scratch as well"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_calls(argument: str, change: dict[str, Any], got: str, way: str) -> None:
    """Refused on one rank, which then calls as it should: the others have waited for it."""

    def fn(comm: Communicator) -> None:
        merge = LseMerge(comm, **OPTIONS, way=way)
        if comm.rank == 0:
            with pytest.raises(CommArgumentError) as caught:
                merge(**{**RIGHT, **change})
            assert str(caught.value).startswith(f"LseMerge: {argument}")
            assert got in str(caught.value)
            assert "rank 0 of 2, backend fake" in str(caught.value)
        out, _ = merge(**RIGHT)
        assert torch.equal(out, torch.ones(5, 2, 3))

    run_ranks(fn, 2)


@pytest.mark.parametrize("way", WAYS)
def test_scratch_apart_from_inputs_and_results(way: str) -> None:
    def fn(comm: Communicator) -> None:
        merge = LseMerge(comm, **OPTIONS, way=way)
        views = [torch.zeros(s.shape, dtype=s.dtype) for s in merge.specs()]
        bytes_there = views[1].view(-1).view(torch.uint8)
        inside = bytes_there[: 4 * 5 * 4].view(torch.float32).view(5, 4)
        with pytest.raises(CommArgumentError, match="overlaps"):
            merge(OUT, inside, scratch=views)
        own = torch.ones(5, 4, 3)
        over = Attended(own.view(-1)[:30].view(5, 2, 3), torch.zeros(5, 2))
        with pytest.raises(CommArgumentError, match="out: got overlaps"):
            merge(own, LSE, out=over)

    run_ranks(fn, 2)


@pytest.mark.parametrize("way", WAYS)
def test_a_workspace_that_is_too_small(way: str) -> None:
    def fn(comm: Communicator) -> None:
        workspace, merge = Workspace(), LseMerge(comm, 64, 4, 3, way=way)
        workspace.reserve(*LseMerge(comm, 64, 4, 1, way=way, chunk_rows=1).specs(), owner="small")
        workspace.lock()
        with pytest.raises(WorkspaceExhausted):
            merge(OUT, LSE, workspace=workspace)
        assert merge(OUT, LSE).out.shape == (5, 2, 3)

    run_ranks(fn, 2)


@pytest.mark.parametrize(
    "differs",
    [
        lambda rank: {"way": WAYS[rank]},
        lambda rank: {"base": "e2"[rank]},
        lambda rank: {"partial": OUT[: 4 + rank], "lse": LSE[: 4 + rank]},
    ],
)
def test_ranks_that_differ_are_told_so(differs: Any) -> None:
    """On every rank, before the payload moves."""

    def fn(comm: Communicator) -> None:
        with pytest.raises(CommMismatch, match="lse_merge"):
            dc.lse_merge(comm, **{**RIGHT, **differs(comm.rank)})

    run_ranks(fn, 2)


def test_the_function_refuses_too() -> None:
    def fn(comm: Communicator) -> None:
        for wrong in (OUT[0], OUT.double(), None):
            with pytest.raises(CommArgumentError, match="lse_merge: partial"):
                dc.lse_merge(comm, wrong, LSE)  # type: ignore[arg-type]

    run_ranks(fn, 2)


def test_what_it_is_and_needs() -> None:
    def fn(comm: Communicator) -> None:
        merge = LseMerge(comm, 8, 4, 3, torch.bfloat16, chunk_rows=2)
        assert repr(merge).startswith("LseMerge(max_rows=8, heads=4, dim=3, dtype=torch.bfloat16")
        assert merge.nbytes == 2 * 2 * 48  # 2 rows of 2 heads, 4 + 6 bytes each, in 16 bytes
        assert LseMerge(comm, 8, 4, 3, way="reduce_scatter").nbytes == 2 * 8 * 4 * 4 + 8 * 4 * 3 * 4

    run_ranks(fn, 2)
