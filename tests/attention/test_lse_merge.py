"""The LSE merge against dense attention in float64, over any shape; B18."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import dcp_comm as dc
from dcp_comm.attention import Attended, LseMerge
from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from tests.attention.cases import CASES, DTYPES, WAYS, Case, check, digest
from tests.forks import reports


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any ranks, heads, dims, counts, empties, dtypes and bases."""
    size = draw(st.integers(1, 5))
    groups = draw(st.sampled_from([1, size, 2 * size]))
    key_dim = draw(st.integers(1, 9))
    prefix = draw(st.booleans())
    return Case(
        size,
        rows=draw(st.integers(0, 70)),
        tokens=draw(st.integers(0, 40)),
        heads=groups * draw(st.integers(1, 3)) * (size if groups == 1 else 1),
        groups=groups,
        key_dim=key_dim,
        value_dim=draw(st.integers(1, key_dim if prefix else 9)),
        prefix=prefix,
        width=draw(st.integers(1, 20)),
        few=draw(st.booleans()),
        interleave=draw(st.integers(1, 3)),
        dtype=draw(st.sampled_from(DTYPES)),
        base=draw(st.sampled_from(["e", "2"])),
        way=draw(st.sampled_from(WAYS)),
        chunk_rows=draw(st.none() | st.integers(1, 80)),
        seed=draw(st.integers(0, 2**16)),
    )


@settings(max_examples=50, deadline=None)
@given(cases())
def test_any_shape_is_dense_attention(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=2000, deadline=None)
@given(cases())
def test_many_shapes_are_dense_attention(case: Case) -> None:
    check(case)


FEW = Case(8, 20, 3, heads=8, groups=8, key_dim=4, value_dim=4, few=True)


@pytest.mark.parametrize("base", ["e", "2"])
@pytest.mark.parametrize("way", WAYS)
def test_ranks_without_a_token_count_as_nothing(way: str, base: str) -> None:
    """Three tokens over eight ranks, rows that attend to none; junk where nothing was attended."""
    case = replace(FEW, way=way, base=base)
    assert any(len(each) == 0 for each in case.winners)
    for out, lse in check(case):
        assert not out.isnan().any()
        assert out[lse == -torch.inf].eq(0).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_rank_with_all_tokens_comes_through_untouched(way: str, dtype: torch.dtype) -> None:
    """The others hold NaN, inf and the largest numbers."""
    exact = torch.randn(5, 6, 3).to(dtype)
    lses = torch.tensor([-torch.inf, 70.0, -torch.inf])

    def fn(comm: Communicator) -> Attended:
        junk = (torch.nan, 0.0, torch.inf)[comm.rank]
        partial = exact if comm.rank == 1 else torch.full_like(exact, junk)
        return dc.lse_merge(comm, partial, lses[comm.rank].expand(5, 6), way=way)

    for rank, (out, lse) in enumerate(run_ranks(fn, 3)):
        assert torch.equal(out, exact[:, 2 * rank : 2 * rank + 2])
        assert torch.equal(lse, torch.full((5, 2), 70.0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_an_lse_that_is_no_number_shows(way: str, bad: float) -> None:
    def fn(comm: Communicator) -> Attended:
        lse = torch.full((1, 2), bad if comm.rank else 1.0)
        return dc.lse_merge(comm, torch.ones(1, 2, 3), lse, way=way)

    assert all(out.isnan().all() for out, _ in run_ranks(fn, 2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", ["e", "2"])
def test_large_and_distant_lses(way: str, base: str) -> None:
    """Neither overflow nor loss: weights come from differences."""

    def fn(comm: Communicator, lses: list[float]) -> Attended:
        partial = torch.full((1, 2, 1), float(comm.rank))
        lse = torch.full((1, 2), lses[comm.rank])
        return dc.lse_merge(comm, partial, lse, way=way, base=base)

    for lses, want in (([3e4, 3e4], 0.5), ([-3e4, -3e4], 0.5), ([0.0, 500.0], 1.0)):
        for out, lse in run_ranks(fn, 2, lses):
            assert out.flatten().tolist() == [want]
            doubled = 0.0 if want == 1.0 else 1.0 if base == "2" else float(np.log(2))
            torch.testing.assert_close(lse, torch.full((1, 1), max(lses) + doubled))


def test_chunks_and_scratch_do_not_show() -> None:
    """Bit for bit the same in chunks, in taken scratch, in allocated scratch, in out."""

    def fn(comm: Communicator, case: Case) -> list[Tensor]:
        mine = case.attend(comm.rank)
        outs = []
        for chunk_rows in (None, 1, 7, 64):
            merge = replace(case, chunk_rows=chunk_rows).merger(comm)
            scratch = [torch.full(s.shape, 0x7F).to(s.dtype) for s in merge.specs()]
            place = Attended.allocate(case.rows, case.kept, case.value_dim, case.dtype, "cpu")
            assert merge(*mine, scratch=scratch, out=place) is place
            outs += [*place, *merge(*mine)]
        return outs

    for way in WAYS:
        case = Case(3, 70, 40, heads=6, groups=6, key_dim=3, value_dim=5, way=way)
        for outs in run_ranks(fn, 3, case):
            assert all(torch.equal(each, outs[0]) for each in outs[::2])
            assert all(torch.equal(each, outs[1]) for each in outs[1::2])


def test_one_message_of_outputs_and_lses() -> None:
    """What the ledger counts is what the formula says; the other way is two calls."""

    def fn(comm: Communicator, way: str) -> dict[str, int]:
        merge = LseMerge(comm, 16, 8, 6, torch.bfloat16, way)
        comm.ledger.reset()
        merge(torch.zeros(16, 8, 6, dtype=torch.bfloat16), torch.zeros(16, 8))
        by_op = comm.ledger.by_op
        return {op: by_op[op].bytes_received for op in by_op if not op.startswith("fingerprint")}

    block = 16 * 2 * (4 + 6 * 2)
    gathered, summed = 3 * 16 * 8 * 4, 3 * 16 * 2 * 6 * 4
    for told in run_ranks(fn, 4, "all_to_all"):
        assert told == {"all_to_all_into": 3 * block}
    for told in run_ranks(fn, 4, "reduce_scatter"):
        assert told == {"all_gather_into": gathered, "reduce_scatter_into": summed}


@pytest.mark.xdist_group("processes")
def test_every_backend_gives_the_same_bits() -> None:
    """Over gloo, in real processes, as over the fake backend."""
    for topic, told in reports("tests.attention.gloo_ranks", 3).items():
        case = CASES[topic]
        expected = [digest(each) for each in check(case)]
        assert [each["digest"] for each in told] == expected, topic


def test_the_public_name() -> None:
    assert dc.lse_merge is sys.modules["dcp_comm.attention.merge"].lse_merge
