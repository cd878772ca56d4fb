"""What a merge refuses: before anything is sent, in words, and without harm to what goes on."""

from typing import Any

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import (
    CommArgumentError,
    WorkspaceExhausted,
)
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.topk.cases import alone, rows_of

K = 4


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
        ("output", "pages", "'pages', need one of 'global', 'local', 'slots'"),
        ("order", "random", "'random', need one of 'score', 'position'"),
        ("mask_neg_inf", 1, "1, need one of True, False"),
        ("options", object(), "<object"),
        ("link", "carrier pigeon", "'carrier pigeon', need a Link, or one of 'nvlink', 'pcie'"),
        ("link", 17, "17, need a Link"),
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
