"""What users hold: names, parts, agreement, the end. Over the fake backend."""

import time
from collections.abc import Callable

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import (
    CommArgumentError,
    CommClosed,
    CommMismatch,
    CommPeerLost,
    CommUsageError,
)
from dcp_comm.testing import run_ranks


def gather(comm: Communicator) -> list[int]:
    slots = torch.full((comm.size,), -1)
    comm.all_gather_into(slots, torch.tensor(comm.rank))
    return slots.tolist()


def test_it_says_who_it_is() -> None:
    def work(comm: Communicator) -> tuple[str, ...]:
        alive = repr(comm)
        comm.close()
        return comm.where, comm.backend, comm.name, f"{comm.device}", alive, repr(comm)

    for rank, found in enumerate(run_ranks(work, 2)):
        where = f"rank {rank} of 2, backend fake"
        alive = f"Communicator('world', {where}, cpu, alive)"
        assert found == (where, "fake", "world", "cpu", alive, alive.replace("alive", "dead"))


def test_parts_have_names_of_their_own() -> None:
    def work(comm: Communicator) -> list[str]:
        parts = [comm.split(comm.rank % 2), comm.split(5)]
        assert parts[1] is not None
        parts.append(parts[1].split(-1))
        return [part.name for part in parts if part is not None]

    assert run_ranks(work, 2) == [
        ["world/1.0", "world/2.5", "world/2.5/1.-1"],
        ["world/1.1", "world/2.5", "world/2.5/1.-1"],
    ]


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        ([0, 0, 0, 0], [0, 1, 2, 3]),
        ([3, 2, 1, 0], [3, 2, 1, 0]),
        ([1, 0, 1, 0], [1, 3, 0, 2]),
        ([-5, 10**12, 0, -(10**12)], [3, 0, 2, 1]),
    ],
)
def test_parts_are_ordered_by_key_and_then_by_rank(keys: list[int], order: list[int]) -> None:
    def work(comm: Communicator) -> tuple[int, list[int]]:
        part = comm.split(0, keys[comm.rank])
        assert part is not None
        slots = torch.full((part.size,), -1)
        part.all_gather_into(slots, torch.tensor(comm.rank))
        return part.rank, slots.tolist()

    for rank, (place, members) in enumerate(run_ranks(work, 4)):
        assert members == order
        assert members[place] == rank


def test_two_groups_of_four_and_a_draft_of_two_beside_them() -> None:
    """TP 8 as two DCP groups of consecutive ranks; a group of another size knows its own size."""

    def work(comm: Communicator) -> tuple[list[int], list[int], int]:
        dcp = comm.split(comm.rank // 4)
        draft = comm.split(0 if comm.rank in (2, 6) else None)
        assert dcp is not None
        members = torch.full((4,), -1)
        dcp.all_gather_into(members, torch.tensor(comm.rank))
        pair = [] if draft is None else gather(draft)
        return members.tolist(), pair, 0 if draft is None else draft.size

    for rank, (members, pair, size) in enumerate(run_ranks(work, 8)):
        assert members == list(range(rank // 4 * 4, rank // 4 * 4 + 4))
        assert (pair, size) == (([0, 1], 2) if rank in (2, 6) else ([], 0))


def test_parts_of_one_rank_need_no_peer() -> None:
    def work(comm: Communicator) -> list[int]:
        alone = comm.split(comm.rank)
        assert alone is not None
        assert (alone.size, alone.backend) == (1, "fake")
        alone.barrier()
        alone.prepare(100)
        again = alone.split(0)
        assert again is not None
        return gather(again)

    assert run_ranks(work, 3) == [[0]] * 3


@pytest.mark.parametrize(("color", "key"), [(1.0, 0), ("0", 0), (True, 0), (0, None), (0, 1.5)])
def test_a_split_takes_whole_numbers(color: int, key: int) -> None:
    def work(comm: Communicator) -> list[int]:
        with pytest.raises(CommArgumentError, match=r"(color|key): got .*, need a whole number"):
            comm.split(color, key)
        return gather(comm)

    assert run_ranks(work, 2) == [[0, 1]] * 2


def test_a_part_dies_alone() -> None:
    def work(comm: Communicator) -> list[int]:
        part = comm.split(0)
        assert part is not None
        if comm.rank == 1:
            part.abort()
        with pytest.raises((CommClosed, CommPeerLost)):
            gather(part)
        return gather(comm)

    assert run_ranks(work, 3) == [[0, 1, 2]] * 3


def test_agreement_gives_back_what_each_rank_said() -> None:
    def work(comm: Communicator) -> list[dict[str, str]]:
        return comm.agree("merge", {"k": 8, "order": "score"}, {"free": comm.rank * 10})

    for found in run_ranks(work, 3):
        assert found == [{"k": "8", "order": "score", "free": f"{r * 10}"} for r in range(3)]


def test_disagreement_is_told_to_all_in_a_table_and_kills() -> None:
    def work(comm: Communicator) -> str:
        with pytest.raises(CommMismatch) as caught:
            comm.agree("merge", {"k": 8 + comm.rank // 2, "order": "score"})
        with pytest.raises(CommMismatch, match="do not agree on k"):
            gather(comm)
        return str(caught.value)

    for text in run_ranks(work, 3):
        assert (
            "merge: the ranks do not agree on k\n  rank  k\n  0     8\n  1     8\n  2     9" in text
        )
        assert "order" not in text


def test_agreements_on_different_things_do_not_mix() -> None:
    def work(comm: Communicator) -> None:
        comm.agree("merge" if comm.rank else "indexer", {"k": 8})

    with pytest.raises(CommMismatch, match="agree merge"):
        run_ranks(work, 2)


def test_agreement_that_is_too_long_is_refused_alone() -> None:
    def work(comm: Communicator) -> list[int]:
        if comm.rank == 0:
            with pytest.raises(CommArgumentError, match="agree: fields: got"):
                comm.agree("merge", {"k": "8" * 2000})
        return gather(comm)

    assert run_ranks(work, 2) == [[0, 1]] * 2


@pytest.mark.parametrize(("check", "found"), [("0", False), ("merge", True), ("all", True)])
def test_announcements_follow_the_check_level(
    monkeypatch: pytest.MonkeyPatch, check: str, found: bool
) -> None:
    monkeypatch.setenv("DCP_COMM_CHECK", check)

    def work(comm: Communicator) -> None:
        comm.announce("merge", rows=7 + comm.rank)

    if found:
        with pytest.raises(CommMismatch, match=r"merge rows=7 .*\n.*merge rows=8"):
            run_ranks(work, 2)
    else:
        assert run_ranks(work, 2) == [None, None]


def test_leaving_by_an_error_lets_the_others_go_at_once() -> None:
    waited = []

    def work(comm: Communicator) -> None:
        part = comm.split(0)
        assert part is not None
        if comm.rank == 0:
            with pytest.raises(ZeroDivisionError), part:
                raise ZeroDivisionError
        else:
            started = time.monotonic()
            with pytest.raises(CommPeerLost, match="rank 0 has failed or was aborted"):
                gather(part)
            waited.append(time.monotonic() - started)
        comm.barrier()

    run_ranks(work, 3)
    assert max(waited) < 1


def test_leaving_in_peace_closes() -> None:
    def work(comm: Communicator) -> None:
        with comm:
            gather(comm)
        calls: list[Callable[[], object]] = [comm.barrier, comm.check, lambda: comm.split(0)]
        for call in calls:
            with pytest.raises(CommClosed, match="communicator 'world' was closed"):
                call()
        comm.close()
        comm.abort()

    run_ranks(work, 2)


def test_an_aborted_communicator_says_so() -> None:
    def work(comm: Communicator) -> None:
        comm.abort()
        comm.close()
        with pytest.raises(CommClosed, match="was aborted"):
            gather(comm)

    run_ranks(work, 1)


@pytest.mark.parametrize("max_bytes", [0, -1, 1.5, True, None, "1"])
def test_preparation_takes_a_number_of_bytes(max_bytes: int) -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(CommArgumentError, match="max_bytes: got"):
            comm.prepare(max_bytes)

    run_ranks(work, 1)


def test_preparation_for_different_sizes_is_a_mismatch() -> None:
    with pytest.raises(CommMismatch, match="do not agree on max_bytes"):
        run_ranks(lambda comm: comm.prepare(100 + comm.rank), 2)


def test_a_wrong_slot_order_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    def work(comm: Communicator) -> None:
        monkeypatch.setattr(comm, "rank", 1 - comm.rank)
        with pytest.raises(CommMismatch, match=r"slot order: got \[1, 0\], need rank order"):
            comm.verify_order()
        with pytest.raises(CommMismatch, match="slot order"):
            comm.check()

    run_ranks(work, 2)


def test_groups_hold_the_communicator_for_their_thread() -> None:
    def work(comm: Communicator) -> None:
        with comm.group():
            with pytest.raises(CommUsageError, match="agree: not inside group"):
                comm.split(0)
            with pytest.raises(CommUsageError, match="agree: not inside group"):
                comm.prepare(10)

    run_ranks(work, 1)
