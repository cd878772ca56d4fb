"""Output "slots": local winners as slots of a paged cache, never from outside the table."""

from typing import Any

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.kernels import torch_ops as ops
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from tests.topk.cases import alone, rows_of

K = 4


def slots_of(
    ids: list[int], table: list[list[int]], request: int | None = 0, page_size: int = 4
) -> list[int]:
    """One row translated."""
    row = torch.tensor([ids], dtype=torch.int32)
    pages = torch.tensor(table, dtype=torch.int32).view(len(table), len(table[0]) if table else 0)
    requests = None if request is None else torch.tensor([request])
    ops.to_slots(row, pages, requests, page_size)
    return row[0].tolist()


def test_slots_by_hand() -> None:
    """Page, then place in the page; -1 stays."""
    assert slots_of([0, 3, 4, 11, -1], [[7, 2, 0]]) == [28, 31, 8, 3, -1]
    assert slots_of([0, 3, 4, 11, -1], [[9, 9, 9], [7, 2, 0]], request=1) == [28, 31, 8, 3, -1]
    assert slots_of([5, 6], [[3, 1]], request=None, page_size=5) == [5, 6]


@pytest.mark.parametrize(
    ("table", "request_id"),
    [([[5]], -1), ([[5]], 1), ([[5]], 2**40), ([[-1]], 0), ([[-(2**31)]], 0), ([[]], 0), ([], 0)],
)
def test_what_the_table_does_not_have_is_absent(table: list[list[int]], request_id: int) -> None:
    """No request, no page, a page that is none, no table: -1, and nothing is read outside."""
    assert slots_of([0, 3, 4, 2**31 - 1, -1], table, request_id) == [-1] * 5


def test_positions_beyond_the_pages_are_absent() -> None:
    """And those within are not."""
    assert slots_of([0, 3, 4, 2**31 - 1, -1], [[5]]) == [20, 23, -1, -1, -1]


@pytest.mark.parametrize("longest", [None, 2])
@pytest.mark.parametrize("strategy", ["gather", "owner", "splitter", "auto"])
def test_each_row_by_its_own_request_or_its_own_table_row(
    strategy: str, longest: int | None
) -> None:
    """In chunks; the same with request ids and without, and where nothing is exchanged."""

    def fn(comm: Communicator) -> tuple[list[list[int]], list[list[int]], list[int]]:
        merge = TopKMerge(
            comm,
            K,
            5,
            strategy=strategy,
            output="slots",
            chunk_rows=2,
            options=MergeOptions(page_size=2),
        )
        scores = torch.full((5, K), torch.nan)
        scores[:, 1] = 1
        ids = torch.arange(K, dtype=torch.int32).repeat(5, 1) + 1  # local position 2 wins
        table = torch.arange(100, 103, dtype=torch.int32) + 10 * torch.arange(5)[:, None].int()
        tables: list[dict[str, Any]] = [
            {"block_table": table},
            {"block_table": table.flip(0), "request_ids": torch.arange(4, -1, -1)},
        ]
        found = []
        for each in tables:
            job = merge.begin(5, longest=longest, **each)
            job.pack(scores[:3], ids[:3])
            job.pack(scores[3:], ids[3:])
            found.append(job.finish().ids.tolist())
        again = merge(scores, ids, **tables[0])
        assert again.ids.tolist() == found[0]
        return found[0], found[1], again.counts.tolist()

    want = [[2 * (101 + 10 * row), -1, -1, -1] for row in range(5)]
    for by_row, by_request, counts in run_ranks(fn, 3):
        assert by_row == by_request == want
        assert counts == [1] * 5


@pytest.mark.parametrize(
    ("output", "tables", "words"),
    [
        ("slots", {}, r"block_table: got None, need the block table"),
        ("slots", {"block_table": torch.zeros(2, 3)}, r"block_table: got torch.float32"),
        ("slots", {"block_table": torch.zeros(2, 3).long()}, r"block_table: got torch.int64"),
        ("slots", {"block_table": torch.zeros(2).int()}, r"block_table: got shape \(2,\)"),
        ("slots", {"block_table": torch.zeros(3, 3).int()}, r"need shape \(2, any\)"),
        (
            "slots",
            {"block_table": torch.zeros(3, 3).int(), "request_ids": torch.zeros(3).int()},
            r"request_ids: got shape \(3,\), need shape \(2\)",
        ),
        (
            "local",
            {"block_table": torch.zeros(2, 3).int()},
            r"block_table: got a Tensor, need None",
        ),
        ("global", {"request_ids": torch.zeros(2).int()}, r"request_ids: got a Tensor, need None"),
    ],
)
def test_tables_of_the_wrong_kind(output: str, tables: dict[str, Any], words: str) -> None:
    """Refused before anything is sent, in a call and in begin; the merge lives on."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8, output=output)
        with pytest.raises(CommArgumentError, match=f"begin: .*{words}"):
            merge.begin(2, **tables)
        with pytest.raises(CommArgumentError, match=f"__call__: .*{words}"):
            merge(*rows_of(2), **tables)
        good = torch.zeros(2, 3).int() if output == "slots" else None
        assert merge(*rows_of(2), block_table=good).counts.tolist() == [K, K]

    alone(fn)
