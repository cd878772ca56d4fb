"""Strategy "splitter": sizes at their ends, both transports, options that mean nothing."""

from typing import Any

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommMismatch
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.result import MergeResult
from tests.topk.cases import Case, alone, check_merge
from tests.topk.lemma import WORST, dealt, most_without_x
from tests.topk.scores import drawn, drawn_lengths

TRANSPORTS = ("all", "owner")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("size", "k"), [(1, 1), (1, 9), (3, 1), (8, 1), (8, 2), (5, 3), (2, 64)])
def test_every_block_size(size: int, k: int, transport: str) -> None:
    """No window (B = 1), one splitter (B = K), no settled block, and all between."""
    rng = np.random.default_rng(k)
    for block in range(1, k + 1):
        scores, lengths = drawn("few", 6, 40, rng), drawn_lengths(6, 40, k, rng)
        options = MergeOptions(transport, block)
        check_merge(
            Case(
                scores,
                lengths,
                size,
                k,
                output="local",
                strategy="splitter",
                options=options,
                chunk_rows=4,
            )
        )


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("k", "size"), [(2048, 2), (2048, 4), (1000, 5), (2051, 3), (2044, 8)])
def test_default_blocks_at_the_bounds_of_the_lemma(k: int, size: int, transport: str) -> None:
    """Constructed rows for the sizes that are used."""
    rng = np.random.default_rng(k)
    block = 16 if size == 8 else 32
    scores = dealt([make(rng, k, size, block) for make in WORST])
    lengths = np.full(len(scores), scores.shape[1])
    for options in (MergeOptions(transport), MergeOptions(transport, block)):
        check_merge(
            Case(scores, lengths, size, k, output="local", strategy="splitter", options=options)
        )


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_fewer_than_k_that_do_not_fit_the_windows(transport: str) -> None:
    """Nine valid keys, none of them a splitter, and windows in which eight may win."""
    rows = [most_without_x(np.random.default_rng(seed), 12, 3, 4) for seed in range(9)]
    case = Case(
        dealt(rows),
        np.full(9, 36),
        3,
        12,
        output="local",
        strategy="splitter",
        options=MergeOptions(transport, 4),
    )
    assert [sum(got.counts) for got in check_merge(case)] == [27, 27, 27]


@pytest.mark.parametrize(
    ("argument", "value", "got"),
    [
        ("transport", "ring", "'ring', need one of None, 'all', 'owner'"),
        ("transport", 1, "1"),
        ("block", 0, "0"),
        ("block", 2.0, "2.0"),
        ("page_size", 0, "0"),
        ("page_size", None, "None"),
        ("tail", "no", "'no'"),
        ("tail", None, "None"),
    ],
)
def test_options_of_the_wrong_kind(argument: str, value: Any, got: str) -> None:
    """Refused where they are made."""
    with pytest.raises(CommArgumentError, match=f"MergeOptions: {argument}: got {got}"):
        MergeOptions(**{argument: value})


@pytest.mark.parametrize(
    ("strategy", "output", "options", "words"),
    [
        ("splitter", "global", None, r"output: got 'global', need one of 'local', 'slots'"),
        (
            "splitter",
            "local",
            MergeOptions(block=9),
            r"options.block: got 9, need an int in 1 .. 8",
        ),
        ("gather", "local", MergeOptions(block=4), r"options.block: got 4, need None"),
        ("owner", "local", MergeOptions("owner"), r"options.transport: got 'owner', need None"),
        ("splitter", "local", {"block": 4}, r"options: got {'block': 4}, need MergeOptions"),
    ],
)
def test_options_that_do_not_fit(strategy: str, output: str, options: Any, words: str) -> None:
    """Refused at construction."""

    def fn(comm: Communicator) -> None:
        with pytest.raises(CommArgumentError, match=f"TopKMerge: {words}"):
            TopKMerge(comm, 8, 8, strategy=strategy, output=output, options=options)

    alone(fn)


@pytest.mark.parametrize(
    "options", [(MergeOptions("all"), MergeOptions("owner")), (None, MergeOptions(block=4))]
)
def test_ranks_that_differ_in_an_option(options: tuple[MergeOptions | None, ...]) -> None:
    """Every rank learns it before the first chunk."""

    def fn(comm: Communicator) -> None:
        mine = options[comm.rank]
        merge = TopKMerge(comm, 64, 8, strategy="splitter", output="local", options=mine)
        with pytest.raises(CommMismatch, match="options"):
            merge.prepare()

    run_ranks(fn, 2)


@pytest.mark.parametrize("strategy", ["gather", "owner", "splitter"])
def test_winners_without_a_tail_are_the_same(strategy: str) -> None:
    """Whoever goes by counts sees the same ids."""

    def fn(comm: Communicator) -> list[list[int]]:
        kept = []
        for tail in (True, False):
            options = MergeOptions(tail=tail)
            op = TopKMerge(comm, 8, 5, strategy=strategy, output="local", options=options)
            scores = torch.arange(40.0).view(5, 8) * (1 if comm.rank else -1)
            ids = torch.arange(8, dtype=torch.int32).repeat(5, 1)
            out = MergeResult.allocate(5, 8, "cpu")
            op(scores, ids, out=out)
            kept.append(
                [row[:count].tolist() for row, count in zip(out.ids, out.counts, strict=True)]
            )
        assert kept[0] == kept[1]
        return kept[0]

    assert sum(len(row) for ranks in run_ranks(fn, 2) for row in ranks) == 40
