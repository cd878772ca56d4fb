"""Reservations that went wrong in public, by value, with the merge that uses them."""

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommUsageError, WorkspaceExhausted
from dcp_comm.specs import BufferSpec
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.buffers import Allocator, raw
from tests.schemes import SCHEMES, K, Scheme, candidates, merge_of

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=str)


def locked(*merges: TopKMerge, slots: int = 1, debug: bool = False) -> Workspace:
    """A workspace for these merges, and for nothing else."""
    workspace = Workspace(slots=slots, debug=debug)
    for number, merge in enumerate(merges):
        workspace.reserve(*merge.specs(), owner=f"merge {number}")
    workspace.lock()
    return workspace


@every_scheme
def test_what_was_warmed_up_small_serves_the_largest(scheme: Scheme) -> None:  # B42
    """Reserved by the limits, warmed up with 8 rows, locked; then 9 rows, R + 1, and all."""

    def fn(comm: Communicator) -> None:
        merge = merge_of(comm, scheme, 40, chunk_rows=16)
        workspace = Workspace()
        workspace.reserve(*merge.specs(), owner="merge")
        merge(*candidates(8), workspace=workspace)
        workspace.lock()
        for rows in (9, 17, 40):
            result = merge(*candidates(rows), workspace=workspace)
            assert int(result.counts.sum()) > 0

    run_ranks(fn, 2)


@every_scheme
def test_what_was_reserved_for_fewer_rows_is_refused_before_any_exchange(
    scheme: Scheme,
) -> None:  # B42
    """The owner is named, the communicator lives on, a larger workspace serves at once."""

    def fn(comm: Communicator) -> list[int]:
        small, large = merge_of(comm, scheme, 8), merge_of(comm, scheme, 13)
        workspace = locked(small)
        comm.ledger.reset()
        with pytest.raises(WorkspaceExhausted, match=r"take: merge 0: got need of \d+ bytes"):
            large(*candidates(13), workspace=workspace)
        with pytest.raises(CommArgumentError, match="rows: got 9, need at most max_rows = 8"):
            small(*candidates(9), workspace=workspace)
        assert not comm.ledger.by_op
        return large(*candidates(13), workspace=Workspace()).counts.tolist()

    counts = run_ranks(fn, 2)
    assert all(len(each) == 13 for each in counts)


def test_every_slot_is_ready_although_one_was_warmed_up() -> None:  # B43
    def fn(comm: Communicator) -> list[int]:
        merge = merge_of(comm, SCHEMES[0], 8)
        workspace = Workspace(slots=2)
        merge(*candidates(8), workspace=workspace.slot(0))
        workspace.lock()
        return merge(*candidates(8), workspace=workspace.slot(1)).counts.tolist()

    assert run_ranks(fn, 2) == [[K] * 8] * 2


def test_a_view_of_an_earlier_take_is_found_in_debug_mode() -> None:  # B44
    """The merge's own take would overwrite it; taken together with the scratch, it stays."""

    def fn(comm: Communicator) -> set[int]:
        merge = merge_of(comm, SCHEMES[0], 8)
        workspace = Workspace(debug=True)
        workspace.reserve(raw(512), *merge.specs(), owner="step")
        workspace.lock()
        (held,) = workspace.take(raw(512))
        with pytest.raises(CommUsageError, match="Take together what must be alive together"):
            merge(*candidates(8), workspace=workspace)
        del held
        held, *scratch = workspace.take(raw(512), *merge.specs())
        held.fill_(7)
        merge(*candidates(8), scratch=scratch)
        return set(held.tolist())

    assert run_ranks(fn, 2) == [{7}] * 2


@pytest.mark.parametrize("scheme", [SCHEMES[0], SCHEMES[1], SCHEMES[4]], ids=str)
def test_scratch_for_one_rank_does_not_serve_four(scheme: Scheme) -> None:  # B48
    """Where every rank receives from all; where rows are dealt, more ranks need no more."""

    def fn(comm: Communicator) -> None:
        alone = comm.split(comm.rank)
        assert alone is not None
        workspace = locked(merge_of(alone, scheme, 8))
        merge = merge_of(comm, scheme, 8)
        comm.ledger.reset()
        with pytest.raises(WorkspaceExhausted, match="need of"):
            merge(*candidates(8), workspace=workspace)
        assert not comm.ledger.by_op

    run_ranks(fn, 4)


@every_scheme
def test_whatever_exchanges_reserves(scheme: Scheme) -> None:  # B49, B51
    """A profile run that only reserves sees all of it; a later merge asks for no more."""

    def fn(comm: Communicator) -> None:
        merge, allocator = merge_of(comm, scheme, 24, chunk_rows=8), Allocator()
        workspace = Workspace(allocator=allocator)
        workspace.reserve(*merge.specs(), owner="merge")
        seen = workspace.report().owners["merge"]
        assert seen >= merge.nbytes > 0
        merge(*candidates(24), workspace=workspace)
        merge(*candidates(24), workspace=workspace)
        assert (allocator.asked, workspace.nbytes) == ([seen], seen)

    run_ranks(fn, 2)


# Past 2 GiB


@pytest.mark.parametrize(("blocks", "nbytes"), [(2142, 2_146_798_080), (2143, 2_147_800_320)])
def test_sizes_on_both_sides_of_two_gib(blocks: int, nbytes: int) -> None:  # B61
    spec = BufferSpec("cache", (blocks, 1_002_240), torch.uint8)
    workspace = Workspace("meta")
    workspace.reserve(spec, raw(1), owner="cache")
    assert spec.nbytes == nbytes
    assert workspace.nbytes == nbytes + 256
    cache, behind = workspace.take(spec, raw(1))
    assert behind.storage_offset() - cache.storage_offset() == nbytes


def test_chunks_keep_offsets_far_below_two_gib() -> None:  # B61
    """131,072 rows of K = 2048 on 4 ranks: 8 GiB at once, 64 MiB by chunks of 1024."""

    def fn(comm: Communicator) -> list[int]:
        rows, k = 131_072, 2048
        every = (TopKMerge(comm, k, rows, strategy="gather", chunk_rows=n) for n in (rows, 1024))
        return [merge.nbytes for merge in every]

    assert run_ranks(fn, 4) == [[2**33, 67_108_864]] * 4


def test_rows_further_apart_than_two_gib_are_written_where_they_lie() -> None:  # B61
    """A result whose rows are strided by 2 GiB and a bit; nothing between them is touched."""
    stride = 2**29 + 64

    def fn(comm: Communicator) -> tuple[list[list[int]], list[int]]:
        memory = torch.empty(stride + 2 * K, dtype=torch.int32)
        memory[K : K + 64] = memory[stride + K :] = 77
        ids = memory.as_strided((2, K), (stride, 1))
        spare = MergeResult.allocate(2, K, "cpu")
        out = MergeResult(ids, spare.counts, spare.certified)
        merge_of(comm, SCHEMES[0], 2)(*candidates(2), out=out)
        beside = [*memory[K : K + 64].unique().tolist(), *memory[stride + K :].unique().tolist()]
        return [sorted(row) for row in ids.tolist()], beside

    assert run_ranks(fn, 1) == [([list(range(K))] * 2, [77, 77])]
