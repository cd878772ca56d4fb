"""Bytes of a peer that are not what it sent: nothing that comes out of a merge is out of range.

That a payload arrives as it was sent is the transport's business, and no merge can tell. What the
library owes is that no byte of a peer becomes an index outside of what the caller can have, a loop
that does not end, or a write outside of the result.
"""

from dataclasses import replace
from typing import Self

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.control import Control
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.testing import run_ranks
from dcp_comm.testing.faults import Fault, FaultPlan, Flip, Truncate
from dcp_comm.topk.options import MergeOptions
from tests.oracle import Ints
from tests.topk.cases import Case, merge_on_a_rank
from tests.topk.scores import drawn

RANKS, ROWS, K, SENDER = 3, 4, 12, 1
MAX_ID = 2**31 - 1
BY_OWNERS = MergeOptions(transport="owner")
BITS = (0, 1, 15, 30, 31, 32, 33, 47, 62, 63, 64 * 5 + 31, 64 * 5 + 63)
"""Of ids and scores of the first numbers that a rank sends."""

SCHEMES = [
    ("gather", "global"),
    ("owner", "global"),
    ("gather", "local"),
    ("owner", "local"),
    ("splitter", "local"),
    ("splitter by owners", "local"),
]


def a_case(strategy: str, output: str) -> Case:
    """Rows longer than K on every rank, each over the same tokens."""
    rng = np.random.default_rng(5)
    scores, lengths = drawn("few", ROWS, 60, rng), np.full(ROWS, 60)
    case = Case(scores, lengths, RANKS, K, output=output, strategy=strategy.split(maxsplit=1)[0])
    return replace(case, options=BY_OWNERS) if "by owners" in strategy else case


def merged(case: Case, *faults: Fault) -> list[Ints]:
    """Every rank's ids, with faults in the ranks' backends that were all seen."""
    plan = FaultPlan(*faults)

    def fn(comm: Communicator) -> Ints:
        plan.into_backend(comm)
        return merge_on_a_rank(comm, case).ids

    found = run_ranks(fn, RANKS)
    assert plan.seen == plan.armed == set(faults)
    return found


def unless_in_range(case: Case, found: list[Ints], *, gaps: bool = False) -> None:
    """Every id is one that the caller can have, winners first, then -1 alone unless there are gaps.

    Not on the sender where it emits from its own buffer: what it holds there is its own doing.
    """
    for rank, ids in enumerate(found):
        if case.output == "local" and rank == SENDER:
            continue
        most = MAX_ID if case.output == "global" else len(case.hand(rank)) - 1
        assert ids.min() >= -1, ids
        assert ids.max() <= most, ids
        if gaps:
            continue
        valid = ids >= 0
        assert (valid[:, :-1] >= valid[:, 1:]).all(), ids


@pytest.mark.parametrize(
    ("strategy", "output", "call"),
    [
        ("gather", "global", 0),
        ("owner", "global", 0),
        ("owner", "global", 1),
        ("gather", "local", 0),
        ("owner", "local", 0),
        ("owner", "local", 1),
        ("splitter", "local", 0),
        ("splitter", "local", 1),
        *(("splitter by owners", "local", call) for call in range(4)),
    ],
)
def test_a_flipped_bit_never_leads_out_of_range(strategy: str, output: str, call: int) -> None:
    """Of keys, of lengths and of positions alike, in each exchange."""
    case = a_case(strategy, output)
    ids_travel = (strategy, output, call) == ("owner", "global", 1)
    for bit in BITS:
        unless_in_range(case, merged(case, Flip(SENDER, call, bit)), gaps=ids_travel)


@pytest.mark.parametrize(("strategy", "output"), SCHEMES)
def test_a_truncated_payload_never_leads_out_of_range(strategy: str, output: str) -> None:
    case = a_case(strategy, output)
    unless_in_range(case, merged(case, Truncate(SENDER, 0)))


def test_a_flipped_bit_is_really_sent() -> None:
    """The sign of the best key: every rank selects otherwise, and alike."""
    case = a_case("gather", "global")
    first, second, third = merged(case, Flip(SENDER, 0, bit=62))
    assert not np.array_equal(first, case.expected(0)[0])
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


@pytest.mark.parametrize("fault", [Flip(1, 0, 3), Truncate(1, 0)], ids=["flip", "truncate"])
def test_the_caller_s_own_input_stays_as_it_is(fault: Fault) -> None:
    plan = FaultPlan(fault)

    def fn(comm: Communicator) -> tuple[list[int], list[list[int]]]:
        plan.into_backend(comm)
        mine, slots = torch.full((4,), 7), torch.empty(comm.size, 4, dtype=torch.int64)
        comm.all_gather_into(slots, mine)
        return mine.tolist(), slots.tolist()

    spoiled = [7 ^ 8, 7, 7, 7] if isinstance(fault, Flip) else [7, 7, 0, 0]
    assert run_ranks(fn, 3) == [([7] * 4, [[7] * 4, spoiled, [7] * 4])] * 3


class FlippingControl(Control):
    """One bit of this rank's records is another."""

    def __init__(self, below: Control, bit: int) -> None:
        self._below, self._bit = below, bit

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        raise NotImplementedError

    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        spoiled = bytearray(record)
        spoiled[self._bit // 8] ^= 1 << self._bit % 8
        return self._below.exchange(bytes(spoiled), deadline)

    def close(self) -> None:
        self._below.close()


@pytest.mark.parametrize("bit", [0, 40, 8 * 10, 8 * 30, 8 * 63 + 7])
def test_a_flipped_bit_of_a_fingerprint_is_a_mismatch(
    monkeypatch: pytest.MonkeyPatch, bit: int
) -> None:
    """Whichever part of it: mark, number, digest, words or count."""
    monkeypatch.setenv("DCP_COMM_CHECK", "all")

    def fn(comm: Communicator) -> bool:
        output = torch.full((comm.size, 3), 7.0)
        if comm.rank == SENDER:
            comm._channel.control = FlippingControl(comm._channel.control, bit)
        with pytest.raises(CommMismatch):
            comm.all_gather_into(output, torch.ones(3))
        return bool((output == 7).all())

    assert run_ranks(fn, RANKS) == [True] * RANKS
