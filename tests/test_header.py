"""Headers: compared on the device, found later by the host; here over the fake backend on CPU."""

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call
from dcp_comm.errors import CommMismatch
from dcp_comm.header import WORDS, Headers
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from tests.allocations import Allocations
from tests.topk.cases import rows_of


def headers(comm: Communicator) -> Headers:
    return Headers(comm._channel.place, lambda call: comm.all_gather_into(call.output, call.input))


def test_equal_headers_are_no_concern() -> None:
    def work(comm: Communicator) -> None:
        found = headers(comm)
        for number in range(3):
            found.exchange(number, "merge rows=8", 8)
            found.check()

    run_ranks(work, 3)


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("other", [(8, "merge", 4), (7, "merges", 4), (7, "merge", 5)])
def test_a_difference_is_found_on_every_rank_and_names_all(
    odd: int, other: tuple[int, str, int]
) -> None:
    def work(comm: Communicator) -> str:
        found = headers(comm)
        found.exchange(*(other if comm.rank == odd else (7, "merge", 4)))
        with pytest.raises(CommMismatch) as caught:
            found.check()
        return str(caught.value)

    for text in run_ranks(work, 3):
        lines = text.splitlines()
        assert lines[0] == "the ranks were not making the same merge"
        assert [line.strip().split("[")[0] for line in lines[1:]] == [
            f"rank {rank}: call {other[0]}: ({other[2]}) "
            if rank == odd
            else f"rank {rank}: call 7: (4) "
            for rank in range(3)
        ]
        assert len({line.split("[")[1] for line in lines[1:]}) == (2 if other[1] == "merges" else 1)


def test_the_first_difference_stays() -> None:
    """Whatever comes after it."""

    def work(comm: Communicator) -> str:
        found = headers(comm)
        found.exchange(1, "merge", 4)
        for number, value in ((2, comm.rank), (3, 0), (4, 10 + comm.rank), (5, 0)):
            found.exchange(number, "merge", value)
        with pytest.raises(CommMismatch) as caught:
            found.check()
        return str(caught.value)

    for text in run_ranks(work, 2):
        assert "rank 0: call 2: (0)" in text
        assert "rank 1: call 2: (1)" in text


def test_an_exchange_allocates_nothing() -> None:
    """So that it can be captured, and repeated."""

    def work(comm: Communicator) -> int:
        found = headers(comm)
        found.exchange(1, "merge", 4)
        found._launch = lambda call: None
        with Allocations() as counted:
            found.exchange(2, "merge", 4)
        return int(counted.peak)

    assert run_ranks(work, 2) == [0, 0]


def test_inference_mode_makes_no_difference() -> None:
    def work(comm: Communicator) -> None:
        with torch.inference_mode():
            found = headers(comm)
            found.exchange(1, "merge", 4)
        found.exchange(2, "merge", 4)
        found.check()

    run_ranks(work, 2)


def test_a_merge_announces_itself_by_a_header_where_there_is_one() -> None:
    """As on CUDA: through the channel, numbered, counted as a fingerprint, fatal at `check`."""

    def work(comm: Communicator) -> tuple[int, int]:
        channel = comm._channel
        merge = TopKMerge(comm, 4, 8, strategy="gather")
        merge.prepare()
        channel._check_level, channel._headers = 0, Headers(channel.place, channel._send_header)
        comm.ledger.reset()
        merge(*rows_of(3))
        comm.check()
        sent = comm.ledger.by_op["fingerprint"].bytes_sent
        counted, number = comm.ledger.by_op["fingerprint"].calls, channel.witness.number
        channel._headers.exchange(number, "merge", comm.rank)
        with pytest.raises(CommMismatch):
            comm.check()
        with pytest.raises(CommMismatch):
            merge(*rows_of(3))
        assert sent == 8 * WORDS
        return counted, number

    assert len(set(run_ranks(work, 2))) == 1


def test_a_header_is_a_call_like_any_other() -> None:
    """In place, of the right shape, so that every backend can move it."""
    seen: list[Call] = []

    def work(comm: Communicator) -> None:
        found = Headers(comm._channel.place, seen.append)
        found.exchange(1, "merge", 4)

    run_ranks(work, 2)
    for call in seen:
        assert (call.op, tuple(call.output.shape)) == ("all_gather_into", (2, WORDS))
        assert tuple(call.input.shape) == (WORDS,)
