"""Where threads post their calls: matching, order, and what the waiting are told."""

import pytest
import torch

from dcp_comm.board import Board, Ticket, World
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout


def ticket(rank: int, op: str = "all_reduce", peer: int = -1, count: int = 3) -> Ticket:
    tensor = torch.zeros(count)
    return Ticket(rank, Call(op, tensor, tensor, peer=peer), None)


def board(size: int = 2) -> Board:
    return World().sit("world", 0, size)


def test_one_name_is_one_board() -> None:
    world = World()
    assert world.sit("a", 0, 2) is world.sit("a", 1, 2)
    assert world.sit("a", 0, 2) is not world.sit("b", 0, 2)


def test_all_must_post_before_a_collective_matches() -> None:
    shared = board()
    first, second = ticket(0), ticket(1)
    shared.post(0, [first])
    assert not first.matched
    shared.post(1, [second])
    assert first.peers == second.peers == {0: first, 1: second}
    assert not first.run_by_all
    shared.mark(first)
    shared.mark(second)
    assert first.run_by_all
    assert shared.open == [[], []]


def test_collectives_match_in_order() -> None:
    shared = board()
    mine, theirs = [ticket(0), ticket(0)], [ticket(1), ticket(1)]
    shared.post(0, mine)
    shared.post(1, theirs)
    assert [each.peers[1] for each in mine] == theirs


def test_messages_match_by_pair_and_in_order() -> None:
    shared = board(3)
    sends = [ticket(0, "send", 2, count) for count in (1, 2)] + [ticket(1, "send", 2)]
    receives = [ticket(2, "recv", 1), ticket(2, "recv", 0, 1), ticket(2, "recv", 0, 2)]
    shared.post(0, sends[:2])
    shared.post(2, receives)
    shared.post(1, sends[2:])
    assert [each.peers[0] for each in receives[1:]] == sends[:2]
    assert receives[0].peers[1] is sends[2]


def test_messages_pass_collectives_that_wait() -> None:
    shared = board(3)
    shared.post(2, [ticket(2)])
    send, receive = ticket(0, "send", 1), ticket(1, "recv", 0)
    shared.post(0, [send])
    shared.post(1, [receive])
    assert send.matched


@pytest.mark.parametrize(
    "other", [ticket(1, "broadcast", 0), ticket(1, count=4), ticket(1, "broadcast", 1)]
)
def test_what_does_not_match_is_named(other: Ticket) -> None:
    shared, mine = board(), ticket(0)
    shared.post(0, [mine])
    shared.post(1, [other])
    with pytest.raises(CommMismatch) as caught:
        shared.wait(mine, "matched", Deadline(5))
    assert f"rank 0: {mine.call}\n  rank 1: {other.call}" in str(caught.value)


def test_messages_that_all_wait_for_one_another_are_a_mismatch() -> None:
    shared, mine = board(), ticket(0, "send", 1)
    shared.post(0, [mine])
    shared.post(1, [ticket(1, "send", 0)])
    with pytest.raises(CommMismatch, match=r"rank 0: send .*\n  rank 1: send"):
        shared.wait(mine, "matched", Deadline(5))


def test_who_is_gone_is_named_with_the_reason() -> None:
    shared, mine = board(3), ticket(0)
    shared.post(0, [mine])
    shared.leave(2, "raised MemoryError()")
    shared.leave(2, "returned")
    with pytest.raises(CommPeerLost, match=r"rank 2 raised MemoryError\(\)"):
        shared.wait(mine, "matched", Deadline(5))


def test_who_leaves_after_the_match_is_still_missed() -> None:
    shared, mine, theirs = board(), ticket(0), ticket(1)
    shared.post(0, [mine])
    shared.post(1, [theirs])
    shared.mark(mine)
    shared.leave(1, "returned")
    with pytest.raises(CommPeerLost, match="rank 1 returned"):
        shared.wait(mine, "run_by_all", Deadline(5))


def test_who_is_missing_is_named_when_time_is_up() -> None:
    shared, mine = board(4), ticket(0)
    shared.post(0, [mine])
    shared.post(2, [ticket(2)])
    with pytest.raises(CommTimeout, match=r"not matched within 0.05 s; missing rank 1, 3"):
        shared.wait(mine, "matched", Deadline(0.05))


def test_a_thread_that_ends_leaves_every_board_it_sat_at() -> None:
    world = World()
    boards = [world.sit(name, rank, 2) for name, rank in (("a", 0), ("b", 1))]
    world.leave("returned")
    world.leave("again")
    assert [board.gone for board in boards] == [{0: "returned"}, {1: "returned"}]
