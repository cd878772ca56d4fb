"""The life of a merge: segments, ends, failures, and what the ranks must agree on."""

from typing import Any

import pytest

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommMismatch, CommUsageError
from dcp_comm.kernels import torch_ops
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from tests.topk.cases import alone, rows_of

K = 4


def test_the_life_of_a_job() -> None:
    """Too many rows and too early a finish leave it alive; its end is an end."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8, chunk_rows=2)
        job = merge.begin(5)
        job.pack(*rows_of(3))
        with pytest.raises(CommArgumentError, match=r"ids: got 3 rows after 3, need 5 in all"):
            job.pack(*rows_of(3))
        with pytest.raises(CommUsageError, match=r"finish: rows: got 3 packed, need all 5"):
            job.finish()
        job.pack(*rows_of(0))
        job.pack(*rows_of(2))
        assert job.finish().counts.tolist() == [K] * 5
        for use in (job.finish, lambda: job.pack(*rows_of(0))):
            with pytest.raises(CommUsageError, match=r"ended: finish\(\) was called"):
                use()

    alone(fn)


def test_begin_supersedes_an_unfinished_job_and_a_refused_begin_does_not() -> None:
    """The old one says so; the new one starts afresh, on every rank alike."""

    def fn(comm: Communicator) -> list[int]:
        merge = TopKMerge(comm, K, 8, chunk_rows=2)
        old = merge.begin(3)
        old.pack(*rows_of(1))
        with pytest.raises(CommArgumentError):
            merge.begin(9)
        old.pack(*rows_of(1))
        new = merge.begin(1)
        with pytest.raises(CommUsageError, match=r"pack: job: .*a later begin\(\) superseded it"):
            old.pack(*rows_of(1))
        new.pack(*rows_of(1))
        return new.finish().counts.tolist()

    assert run_ranks(fn, 2) == [[K]] * 2


def test_a_job_whose_pack_failed_midway_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it wrote is undefined, so it says so; the merge lives on."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8, chunk_rows=2)
        job = merge.begin(4)
        with monkeypatch.context() as patch:
            patch.setattr(torch_ops, "pack", out_of_memory)
            with pytest.raises(MemoryError):
                job.pack(*rows_of(4))
        with pytest.raises(CommUsageError, match=r"ended: an earlier pack failed"):
            job.finish()
        assert merge(*rows_of(4)).counts.tolist() == [K] * 4

    alone(fn)


def test_a_rank_that_fails_in_pack_takes_the_others_along() -> None:
    """The caller sees that rank's own error; nobody hangs."""

    def fn(comm: Communicator) -> None:
        job = TopKMerge(comm, K, 8, chunk_rows=2).begin(4)
        job.pack(*rows_of(3))
        if comm.rank == 1:
            out_of_memory()
        job.pack(*rows_of(1))

    with pytest.raises(MemoryError):
        run_ranks(fn, 3)


def out_of_memory(*args: object, **kwargs: object) -> None:
    """Stand in for a pack that fails."""
    raise MemoryError


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("k", [4, 5]),
        ("max_rows", [8, 9]),
        ("interleave", [1, 2]),
        ("output", ["global", "local"]),
        ("order", ["score", "position"]),
        ("mask_neg_inf", [True, False]),
        ("chunk_rows", [2, 3]),
    ],
)
def test_ranks_that_differ_in_an_option(option: str, values: list[Any]) -> None:
    """Every rank learns it, by name, before the first chunk."""

    def fn(comm: Communicator) -> str:
        options: dict[str, Any] = {"k": K, "max_rows": 8, option: values[comm.rank]}
        merge = TopKMerge(comm, **options)
        with pytest.raises(CommMismatch, match=option) as caught:
            merge.prepare()
        return str(caught.value)

    assert len(run_ranks(fn, 2)) == 2


def test_two_ranks_in_one_place_of_the_interleave() -> None:
    """Their ids would collide; every rank learns it."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8, shard_rank=1)
        with pytest.raises(CommMismatch, match="shard_rank"):
            merge.begin(1)

    run_ranks(fn, 2)


@pytest.mark.parametrize("what", ["rows", "longest"])
def test_ranks_that_merge_different_rows(what: str) -> None:
    """T or the longest row differs: every rank learns it before the first chunk."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8, output="local")
        merge.prepare()
        rows = comm.rank if what == "rows" else 2
        longest = 3 + 2 * comm.rank if what == "longest" else None
        with pytest.raises(CommMismatch):
            merge.begin(rows, longest=longest)

    run_ranks(fn, 2)


def test_no_rows_at_all() -> None:
    """T = 0 on every rank: an empty result, nothing gathered."""

    def fn(comm: Communicator) -> tuple[int, ...]:
        result = TopKMerge(comm, K, 8)(*rows_of(0))
        return tuple(result.ids.shape)

    assert run_ranks(fn, 3) == [(0, K)] * 3


def test_repr_says_the_options() -> None:
    """For logs."""
    words = alone(lambda comm: repr(TopKMerge(comm, K, 8, order="position")))
    assert words.startswith("TopKMerge(k=4, max_rows=8")
    assert "order='position'" in words
