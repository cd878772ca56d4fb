"""What a merge refuses: before anything is sent, in words, and without harm to what goes on."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import (
    CommArgumentError,
    CommMismatch,
    CommUsageError,
    WorkspaceExhausted,
)
from dcp_comm.kernels import torch_ops
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace

K = 4


def rows_of(n: int, k: int = K) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of K candidates each."""
    return torch.rand(n, k), torch.arange(k, dtype=torch.int32).repeat(n, 1)


def alone(fn: Callable[[Communicator], Any]) -> Any:
    """Run on a group of one."""
    return run_ranks(fn, 1)[0]


@pytest.mark.parametrize(
    ("argument", "value", "got"),
    [
        ("k", 0, "0"),
        ("k", True, "True"),
        ("k", 2.0, "2.0"),
        ("max_rows", 0, "0"),
        ("interleave", 0, "0"),
        ("chunk_rows", 0, "0"),
        ("shard_rank", 1, "1"),
        ("shard_rank", -1, "-1"),
        ("strategy", "union", "'union', need one of 'auto', 'gather'"),
        ("output", "slots", "'slots', need one of 'global', 'local'"),
        ("order", "random", "'random', need one of 'score', 'position'"),
        ("mask_neg_inf", 1, "1, need one of True, False"),
        ("options", object(), "<object"),
        ("link", "nvlink", "'nvlink'"),
    ],
)
def test_options_that_mean_nothing(argument: str, value: object, got: str) -> None:
    """Refused at construction, naming what there is."""

    def fn(comm: Communicator) -> None:
        options: dict[str, Any] = {"k": K, "max_rows": 8, argument: value}
        with pytest.raises(CommArgumentError, match=rf"TopKMerge: {argument}: got {got}"):
            TopKMerge(comm, **options)

    alone(fn)


@pytest.mark.parametrize(
    ("argument", "value", "got"),
    [
        ("scores", torch.rand(2, K).double(), "float64"),
        ("scores", torch.rand(3, K), r"shape \(3, 4\), need shape \(2, 4\)"),
        ("scores", torch.rand(K, 2).T, "strides"),
        ("scores", [[1.0]], "list"),
        ("ids", torch.zeros(2, K, dtype=torch.int64), "int64"),
        ("ids", torch.zeros(2, K + 1, dtype=torch.int32), r"shape \(2, 5\), need shape \(any, 4\)"),
        ("ids", torch.zeros(2 * K, dtype=torch.int32), r"shape \(8,\)"),
        ("ids", torch.zeros(2, K, dtype=torch.int32, device="meta"), "device meta"),
        ("lengths", torch.zeros(2), "float32"),
        ("lengths", torch.zeros(3, dtype=torch.int32), r"shape \(3,\)"),
    ],
)
def test_candidates_of_the_wrong_kind(argument: str, value: object, got: str) -> None:
    """In a call and in a job, which lives on."""
    scores, ids = rows_of(2)
    good: dict[str, Any] = {"scores": scores, "ids": ids, "lengths": None}

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8)
        with pytest.raises(CommArgumentError, match=rf"{argument}: got .*{got}"):
            merge(**{**good, argument: value})
        job = merge.begin(2)
        with pytest.raises(CommArgumentError, match=rf"MergeJob.pack: {argument}: got .*{got}"):
            job.pack(**{**good, argument: value})
        job.pack(**good)
        assert job.finish().counts.tolist() == [K, K]

    alone(fn)


@pytest.mark.parametrize(
    ("argument", "value", "got"),
    [
        ("logits", torch.rand(2, 9).double(), "float64"),
        ("logits", torch.rand(3, 9), r"shape \(3, 9\), need shape \(2, any\)"),
        ("logits", torch.rand(9, 2).T, "strides"),
        ("row_starts", torch.zeros(3, dtype=torch.int32), r"shape \(3,\)"),
        ("row_starts", torch.zeros(2), "float32"),
        ("lengths", torch.zeros(3, dtype=torch.int32), r"shape \(3,\)"),
    ],
)
def test_logits_of_the_wrong_kind(argument: str, value: object, got: str) -> None:
    """Lists of one batch with lengths of another are a shape error, not misaligned rows."""
    good: dict[str, Any] = {"logits": torch.rand(2, 9), "ids": rows_of(2)[1]}

    def fn(comm: Communicator) -> None:
        job = TopKMerge(comm, K, 8).begin(2)
        with pytest.raises(CommArgumentError, match=rf"pack_logits: {argument}: got .*{got}"):
            job.pack_logits(**{**good, argument: value})
        job.pack_logits(**good)
        assert job.finish().counts.tolist() == [K, K]

    alone(fn)


def broken(field: str, tensor: torch.Tensor) -> MergeResult:
    """A result for two rows with one field replaced."""
    good = MergeResult.allocate(2, K, "cpu")
    return MergeResult(**{**vars(good), field: tensor})


@pytest.mark.parametrize(
    ("out", "argument"),
    [
        (MergeResult.allocate(3, K, "cpu"), "out.ids"),
        (MergeResult.allocate(2, K + 1, "cpu"), "out.ids"),
        (broken("ids", torch.zeros(2, K, dtype=torch.int64)), "out.ids"),
        (broken("ids", torch.zeros(K, 2, dtype=torch.int32).T), "out.ids"),
        (broken("ids", torch.zeros(1, K, dtype=torch.int32).expand(2, K)), "out.ids"),
        (broken("counts", torch.zeros(2, dtype=torch.int64)), "out.counts"),
        (broken("counts", torch.zeros(1, dtype=torch.int32).expand(2)), "out.counts"),
        (broken("certified", torch.zeros(2, dtype=torch.uint8)), "out.certified"),
        (torch.zeros(2, K, dtype=torch.int32), "out"),
    ],
)
def test_results_that_cannot_be_written(out: Any, argument: str) -> None:
    """Refused by begin; the merge lives on."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8)
        with pytest.raises(CommArgumentError, match=rf"TopKMerge.begin: {argument}: got "):
            merge.begin(2, out=out)
        assert merge(*rows_of(2)).counts.tolist() == [K, K]

    alone(fn)


def test_an_inference_result_outside_inference_mode() -> None:
    """What torch would refuse only after the exchange."""

    def fn(comm: Communicator) -> None:
        with torch.inference_mode():
            out = MergeResult.allocate(2, K, "cpu")
        with pytest.raises(CommArgumentError, match=r"out.ids: got an inference tensor"):
            TopKMerge(comm, K, 8).begin(2, out=out)

    alone(fn)


def test_rows_beyond_max_rows_and_longest_of_the_wrong_kind() -> None:
    """Before anything is sent, so that one rank alone may be refused."""

    def fn(comm: Communicator) -> list[int]:
        merge = TopKMerge(comm, K, 8)
        merge.prepare()
        if comm.rank == 0:
            for rows in (9, -1, 2.0, True):
                with pytest.raises(CommArgumentError, match=r"begin: rows: got"):
                    merge.begin(rows)  # type: ignore[arg-type]
            with pytest.raises(CommArgumentError, match=r"begin: longest: got -1"):
                merge.begin(2, longest=-1)
            with pytest.raises(CommArgumentError, match=r"rows: got 9, need at most max_rows = 8"):
                merge(*rows_of(9))
        return merge(*rows_of(2)).counts.tolist()

    assert run_ranks(fn, 2) == [[K, K]] * 2


def test_scratch_of_the_wrong_kind() -> None:
    """Number, shape, dtype, strides; and one source only."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8)
        good = torch.empty(1, 8, K, dtype=torch.int64)
        for scratch in ([], [good, good], [good[:, :4]], [good.int()], [good.transpose(1, 2)]):
            with pytest.raises(CommArgumentError, match=r"begin: scratch"):
                merge.begin(2, scratch=scratch)
        strided = torch.empty(1, 8, 2 * K, dtype=torch.int64)[:, :, :K]
        with pytest.raises(CommArgumentError, match=r"scratch 'gathered': got strides"):
            merge.begin(2, scratch=[strided])
        with pytest.raises(CommArgumentError, match=r"workspace: got scratch as well"):
            merge.begin(2, scratch=[good], workspace=Workspace())

    alone(fn)


def test_a_locked_workspace_that_is_too_small() -> None:
    """Names the need; nothing was sent, so that a larger one serves next."""

    def fn(comm: Communicator) -> list[int]:
        merge = TopKMerge(comm, K, 8)
        merge.prepare()
        small = Workspace()
        small.lock()
        if comm.rank == 1:
            with pytest.raises(WorkspaceExhausted, match="gathered"):
                merge.begin(2, workspace=small)
        return merge(*rows_of(2), workspace=Workspace()).counts.tolist()

    assert run_ranks(fn, 2) == [[K, K]] * 2


def test_inputs_and_results_that_lie_in_the_scratch() -> None:
    """What was taken from the same workspace, but not together with the scratch, would be lost."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8)
        scratch = [torch.empty(spec.shape, dtype=spec.dtype) for spec in merge.specs()]
        scores, ids = rows_of(2)
        inside = scratch[0].view(-1).view(torch.float32)[: 2 * K].view(2, K)
        with pytest.raises(CommArgumentError, match=r"__call__: scratch: got overlaps"):
            merge(inside, ids, scratch=scratch)
        out = broken("ids", inside.view(torch.int32))
        with pytest.raises(CommArgumentError, match=r"begin: scratch: got overlaps"):
            merge.begin(2, scratch=scratch, out=out)
        job = merge.begin(2, scratch=scratch)
        with pytest.raises(CommArgumentError, match=r"pack_logits: scratch: got overlaps"):
            job.pack_logits(inside, ids)
        assert merge(scores, ids, scratch=scratch).counts.tolist() == [K, K]

    alone(fn)


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
