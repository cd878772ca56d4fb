"""Who gives up on a call names who is missing; over real gloo between threads."""

import subprocess
import sys
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dcp_comm.communicator import Communicator
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.processes import own_process
from dcp_comm.roll import FAILED, PASSED, WAITS, Roll, Word
from dcp_comm.settings import Settings
from tests.threads import join, joiners

TIMEOUT = 1.0
UNCHECKED = Settings(check="0")


def rolls(store: dist.Store, size: int = 3) -> list[Roll]:
    return [Roll(store, rank, size) for rank in range(size)]


@pytest.mark.parametrize(
    "raw", [b"", b"waits", b"waits x y", b"naps 3 y", b"\xff\xfe", b"waits -3"]
)
def test_what_is_no_word_is_not_read(raw: bytes) -> None:
    assert Word.decode(raw) is None


def test_a_word_is_one_short_line() -> None:
    word = Word.decode(Word(FAILED, 7, "first\nsecond " + "x" * 1000).encode().encode())
    assert word is not None
    assert word.text.startswith("first second xxx")
    assert len(word.text) < 400


def test_a_store_that_holds_nonsense_or_nothing_harms_nobody() -> None:
    store = dist.HashStore()
    mine, other, _ = rolls(store)
    store.set("1", "x" * 10_000_000)
    assert mine.missing(3, 0.01) == "rank 1 did not come; rank 2 did not come"
    other.say(WAITS, 3, "all_reduce")
    assert mine.missing(3, 0.01) == "rank 2 did not come"


def test_what_is_known_of_each_rank_is_told() -> None:
    store = dist.HashStore()
    roll, *others = rolls(store, 6)
    for other, word in zip(
        others[:4],
        [(WAITS, 5, "a"), (WAITS, 3, "b"), (FAILED, 4, "MemoryError"), (PASSED, 6, "c")],
        strict=True,
    ):
        other.say(*word)
    assert roll.missing(5, 0.01).split("; ") == [
        "rank 2 did not come: it waits at call 3, b",
        "rank 3 failed at call 4: MemoryError",
        "rank 4 is ahead: it was last heard of at call 6, c",
        "rank 5 did not come",
    ]
    assert roll.lost() == "rank 3 failed at call 4: MemoryError"


def test_a_mismatch_that_another_rank_found_is_one_here_too() -> None:
    one, other, _ = rolls(dist.HashStore())
    other.say(FAILED, 5, "CommMismatch: rank 1: call 5: end")
    with pytest.raises(CommMismatch, match=r"^rank 1: call 5: end \(told by rank 1\)$"):
        one.lost()


def test_ranks_that_wait_for_different_things_are_told_apart() -> None:
    one, other, third = rolls(dist.HashStore())
    other.say(WAITS, 5, "end")
    one.unless_apart(4, "all_reduce")
    one.unless_apart(5, "end")
    third.say(PASSED, 5, "all_reduce")
    one.unless_apart(5, "end")
    with pytest.raises(CommMismatch, match=r"rank 0: call 5: all_reduce\n  rank 1: call 5: end"):
        one.unless_apart(5, "all_reduce")


def test_long_texts_that_differ_at_their_end_alone_are_taken_for_the_same() -> None:
    """Words are cut; a false alarm would be worse than a later one."""
    one, other, _ = rolls(dist.HashStore())
    other.say(WAITS, 5, "x" * 500)
    one.unless_apart(5, "x" * 500)


def test_a_process_that_has_ended_is_named() -> None:
    peer = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    names = (own_process(), f"{own_process().rpartition('/')[0]}/{peer.pid}")
    roll = Roll(dist.HashStore(), 0, 2, names)
    assert roll.lost() == ""
    peer.kill()
    assert Deadline(5.0).poll(lambda: roll.lost() == "the process of rank 1 has ended")
    peer.wait()
    assert roll.missing(1, 0.01) == "the process of rank 1 has ended"


class Frozen(dist.Store):
    """A store whose host does not answer."""

    def check(self, keys: list[str]) -> bool:
        time.sleep(60)
        return False


def test_a_frozen_store_holds_nobody_up() -> None:
    roll, started = Roll(Frozen(), 0, 2), time.monotonic()
    assert roll.missing(1, 0.1) == "rank 1 did not come"
    assert time.monotonic() - started < 2


def told(work: Any, size: int = 3, settings: Settings = UNCHECKED) -> list[Any]:
    """What each rank returned or raised, and when."""

    def timed(comm: Communicator) -> tuple[Any, float]:
        comm.barrier()
        started = time.monotonic()
        try:
            found = work(comm)
        except DcpCommError as error:
            found = error
        return found, time.monotonic() - started

    return join(joiners(size, settings=settings), timed, timeout=TIMEOUT)


@pytest.mark.parametrize("check", ["0", "all"])
def test_a_rank_that_never_calls_is_named(check: str) -> None:
    def work(comm: Communicator) -> None:
        comm.all_reduce(torch.zeros(3))
        if comm.rank == 1:
            time.sleep(2.5 * TIMEOUT)
            return
        comm.all_reduce(torch.zeros(5))

    found = told(work, settings=Settings(check=check))
    assert found[1][0] is None
    for error, seconds in (found[0], found[2]):
        assert type(error) is CommTimeout
        assert "rank 1 did not come" in str(error)
        assert "rank 0 did" not in str(error)
        assert "rank 2 did" not in str(error)
        assert "all_reduce" in str(error)
        assert "communicator 'threads'" in str(error)
        assert TIMEOUT <= seconds < TIMEOUT + 1


def test_a_rank_that_waits_elsewhere_is_named_as_such() -> None:
    """Over gloo the two would wait for one another until time is up."""

    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            comm.barrier()
        else:
            comm.all_reduce(torch.zeros(3))

    for error, seconds in told(work):
        assert type(error) is CommMismatch
        assert "rank 2: call" in str(error)
        assert "barrier" in str(error)
        assert "all_reduce float32 x 3 sum" in str(error)
        assert seconds < TIMEOUT


def test_why_a_rank_failed_is_told_to_those_that_lose_it() -> None:
    def work(comm: Communicator) -> None:
        with comm:
            if comm.rank == 1:
                raise MemoryError("full")
            comm.all_reduce(torch.zeros(3))

    found = join(joiners(3, settings=UNCHECKED), work)
    assert isinstance(found[1], MemoryError)
    for error in (found[0], found[2]):
        assert type(error) is CommPeerLost
        assert "rank 1 failed at call" in str(error)
        assert "was aborted" in str(error)


def test_a_receive_names_the_rank_that_did_not_send() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.recv(torch.zeros(3), 2)
        else:
            time.sleep(2 * TIMEOUT)

    error, _ = told(work)[0]
    assert type(error) is CommTimeout
    assert "waited for rank 2" in str(error)


def test_ranks_that_come_late_but_in_time_are_no_concern() -> None:
    def work(comm: Communicator) -> int:
        for turn in range(3):
            time.sleep(0.4 * (turn == comm.rank))
            comm.all_reduce(torch.zeros(3))
        return comm.rank

    assert [found for found, _ in told(work)] == [0, 1, 2]
