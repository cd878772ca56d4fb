"""Every illegal argument is refused with its name, before anything is sent; the group lives on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommMismatch
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer
from dcp_comm.testing import run_ranks
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.indexer.cases import Case, a_step, compare, shard

LIMITS = IndexerLimits(3, 2, 3, 6, 3, 40, next_n=2, interleave=2, page_size=4)
STEP = a_step("prefill", [21, 9], [2, 2])

INPUTS = ("q", "weights", "cache", "batch")

Call = dict[str, Any]
Change = Callable[[Call], Call]


def at(index: tuple[int, int], page: int) -> Change:
    """Put one page of the table elsewhere."""

    def change(call: Call) -> Call:
        table = call["batch"].page_table.clone()
        table[index] = page
        return {"batch": replace(call["batch"], page_table=table)}

    return change


def batch(**fields: Any) -> Change:
    """Change fields of the batch."""
    return lambda call: {"batch": replace(call["batch"], **fields)}


def table(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Change the page table."""
    return lambda call: {
        "batch": replace(call["batch"], page_table=change(call["batch"].page_table))
    }


def tensor(name: str, change: Callable[[torch.Tensor], object]) -> Change:
    """Change one of the tensors."""
    return lambda call: {name: change(call[name])}


def out(rows: int = 4, k: int = 3, dtype: torch.dtype = torch.int32) -> Change:
    """Give a place for the result."""
    result = MergeResult.allocate(rows, k, "cpu")
    return lambda call: {"out": replace(result, ids=result.ids.to(dtype))}


REFUSED: dict[str, tuple[str, Change]] = {
    "q of a list": ("q: got list", tensor("q", torch.Tensor.tolist)),
    "q of other rows": (r"q: got shape \(3, 2, 3\), need shape \(4", tensor("q", lambda q: q[:3])),
    "q of other heads": ("q: got shape", tensor("q", lambda q: q[:, :1])),
    "q of another head_dim": ("q: got shape", tensor("q", lambda q: q[..., :2])),
    "q in bfloat16": ("q: got torch.bfloat16", tensor("q", torch.Tensor.bfloat16)),
    "q without memory": ("q: got device meta", tensor("q", lambda q: q.to("meta"))),
    "weights of other rows": ("weights: got shape", tensor("weights", lambda w: w[1:])),
    "weights in float64": ("weights: got torch.float64", tensor("weights", torch.Tensor.double)),
    "cache of other pages": ("cache: got shape", tensor("cache", lambda c: c[:, :2])),
    "cache of two dimensions": ("cache: got shape", tensor("cache", lambda c: c.flatten(0, 1))),
    "cache in float16": ("cache: got torch.float16", tensor("cache", torch.Tensor.half)),
    "cache of fp8 without scales": (
        r"cache: got shape \(\d+, 4, 3\), need shape \(any, 4, 7\)",
        tensor("cache", torch.Tensor.byte),
    ),
    "cache with gaps": (
        "cache: got strides",
        tensor("cache", lambda c: torch.cat([c, c], 2)[..., :3]),
    ),
    "cache too small": ("cache: got 1 pages, need at least the", tensor("cache", lambda c: c[:1])),
    "page below 0": (r"page_table: got pages \[-1\], need pages of 0", at((1, 0), -1)),
    "page beyond the cache": (r"page_table: got pages \[99\]", at((0, 1), 99)),
    "page table too narrow": ("page_table: got 1 pages", table(lambda t: t[:, :1])),
    "page table of other rows": ("page_table: got shape", table(lambda t: t[:1])),
    "page table of floats": ("page_table: got torch.float32", table(torch.Tensor.float)),
    "page table without memory": ("page_table: got device meta", table(lambda t: t.to("meta"))),
    "lengths filtered": (
        r"page_table: got shape \(2, \d+\), need shape \(1",
        batch(lengths=[21], query_lengths=[4]),
    ),
    "too many requests": (
        "batch.lengths: got 4, need at most requests = 3",
        batch(lengths=[1] * 4, query_lengths=[1] * 4),
    ),
    "too long a request": (
        "batch.lengths: got 41, need at most max_model_len = 40",
        batch(lengths=[21, 41]),
    ),
    "too many rows": ("batch.query_lengths: got ", batch(query_lengths=[3, 4])),
    "no batch": ("batch: got tuple", lambda call: {"batch": ([21, 9], [2, 2])}),
    "no workspace": ("workspace: got NoneType", lambda call: {"workspace": None}),
    "out of other rows": ("out.ids: got shape", out(rows=3)),
    "out of another k": ("out.ids: got shape", out(k=4)),
    "out in int64": ("out.ids: got torch.int64", out(dtype=torch.int64)),
    "out of a tensor": ("out: got Tensor", lambda call: {"out": torch.zeros(4, 3)}),
}


@pytest.mark.parametrize("path", ["prefill", "decode"])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, path: str) -> None:
    """By name, on a rank that then serves the same step right."""
    words, change = REFUSED[name]
    if path == "prefill":
        words = words.replace("cache: ", "keys: ")

    def fn(comm: Communicator) -> list[str]:
        case, workspace = Case(LIMITS, 2, (STEP,)), Workspace()
        indexer = case.indexer(comm)
        inputs = dict(zip(INPUTS, shard(STEP, LIMITS, 2, comm.rank), strict=True))
        call: Call = {**inputs, "workspace": workspace, "out": None}
        run, order = getattr(indexer, path), list(call)
        with pytest.raises(CommArgumentError, match=f"SparseIndexer.{path}: .*{words}"):
            run(*({**call, **change(call)}[key] for key in order))
        sent = list(comm.ledger.by_op)
        got = run(*call.values())
        compare(case, comm.rank, [(got.ids.numpy(), got.counts.numpy())])
        return sent

    assert run_ranks(fn, 2) == [[], []]


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_slots_need_an_int32_table(path: str) -> None:
    """As the merge reads it; nothing is converted behind the caller's back."""

    def fn(comm: Communicator) -> list[str]:
        indexer = SparseIndexer(comm, LIMITS, output="slots")
        inputs = shard(STEP, LIMITS, 1, 0, dtype=torch.int64)
        with pytest.raises(CommArgumentError, match=r"page_table: got torch.int64, need torch.int"):
            getattr(indexer, path)(*inputs, workspace=Workspace())
        return list(comm.ledger.by_op)

    assert run_ranks(fn, 1) == [[]]


def test_decode_refuses_more_rows_a_request_than_next_n() -> None:
    """Which prefill takes."""

    def fn(comm: Communicator) -> None:
        case, workspace = Case(LIMITS, 1, ()), Workspace()
        inputs = shard(a_step("decode", [9], [3]), LIMITS, 1, 0)
        indexer = case.indexer(comm)
        with pytest.raises(CommArgumentError, match="got 3, need at most next_n = 2"):
            indexer.decode(*inputs, workspace=workspace)
        assert indexer.prefill(*inputs, workspace=workspace).ids.shape == (3, 3)

    run_ranks(fn, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, 0) for name in LIMITS.__dataclass_fields__),
        *((name, True) for name in LIMITS.__dataclass_fields__),
        ("k", 2.0),
        ("heads", -1),
        ("max_model_len", 2**31),
        ("interleave", 3),
        ("interleave", 16),
        ("page_size", 3),
        ("requests", 2**31 - 1),
    ],
)
def test_limits_refuse(field: str, value: object) -> None:
    """What is no positive int, and an interleave that does not divide the page."""
    with pytest.raises(CommArgumentError, match=r"IndexerLimits: .*: got"):
        replace(LIMITS, **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("interleave", [1, 2, 4, 8])
def test_limits_take_an_interleave_that_divides_the_page(interleave: int) -> None:
    """As engines have them."""
    assert replace(LIMITS, page_size=8, interleave=interleave).interleave == interleave


@pytest.mark.parametrize(
    ("lengths", "counts", "words"),
    [
        (5, [1], "lengths: got 5, need a sequence"),
        ([5.0], [1], "lengths: got 5.0"),
        (torch.tensor([5]), [1], r"lengths: got tensor\(5\)"),
        ([5], [True], "query_lengths: got True"),
        ([5], [-1], "query_lengths: got -1"),
        ([5], [1, 1], "query_lengths: got 2, need 1"),
        ([2**31], [1], "lengths: got 2147483648"),
    ],
)
def test_batches_refuse(lengths: Any, counts: Any, words: str) -> None:
    """What is no int of the host, or not one a request."""
    with pytest.raises(CommArgumentError, match=f"IndexerBatch: {words}"):
        IndexerBatch(lengths, counts, torch.zeros(1, 1, dtype=torch.int32))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"output": "all"}, "output: got 'all'"),
        ({"options": 5}, "options: got 5, need MergeOptions or None"),
        ({"order": "id"}, "order: got 'id'"),
        ({"shard_rank": 2}, "shard_rank: got 2"),
        ({"chunk_rows": -1}, "chunk_rows: got -1"),
        ({"mask_neg_inf": 1}, "mask_neg_inf: got 1"),
        ({"scale": float("nan")}, "scale: got nan"),
        ({"scale": "1"}, "scale: got '1'"),
        ({"score": 1.0}, "score: got 1.0"),
        ({"limits": {"k": 3}}, "limits: got dict"),
        ({"limits": replace(LIMITS, logits_bytes=79)}, "logits_bytes: got 79, need at least 80"),
    ],
)
def test_construction_refuses(options: dict[str, Any], words: str) -> None:
    """By name, and nothing was sent."""

    def fn(comm: Communicator) -> list[str]:
        with pytest.raises(CommArgumentError, match=words):
            SparseIndexer(comm, **{"limits": LIMITS, **options})
        return list(comm.ledger.by_op)

    assert run_ranks(fn, 2) == [[], []]


def test_reserve_refuses_what_is_no_workspace() -> None:
    """A slot cannot reserve."""

    def fn(comm: Communicator) -> None:
        indexer = SparseIndexer(comm, LIMITS)
        with pytest.raises(CommArgumentError, match="reserve: workspace: got WorkspaceSlot"):
            indexer.reserve(Workspace().slot(0))  # type: ignore[arg-type]

    run_ranks(fn, 1)


def test_ranks_that_differ_in_an_option_find_out_before_anything_is_exchanged() -> None:
    """In what the exchanges depend on: here the rows that a prefill may bring."""

    def fn(comm: Communicator) -> None:
        limits = replace(LIMITS, query_rows=6 + comm.rank)
        with pytest.raises(CommMismatch, match="max_rows"):
            SparseIndexer(comm, limits).prepare()

    run_ranks(fn, 2)
