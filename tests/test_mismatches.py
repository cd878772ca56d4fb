"""Calls that do not match raise on every rank, naming both sides; over the fake backend."""

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommMismatch
from dcp_comm.testing import run_ranks
from tests.ranks import Work, errors, full, gather


def reduce(comm: Communicator) -> None:
    comm.all_reduce(full(comm))


def in_turn(comm: Communicator, *calls: Work) -> None:
    for call in calls:
        call(comm)


MISMATCHES: dict[str, tuple[Work, Work, str, str]] = {
    "operation": (
        reduce,
        lambda c: c.broadcast(full(c), 0),
        "all_reduce float32 x 3 sum",
        "broadcast float32 x 3 root 0",
    ),
    "dtype": (
        gather,
        lambda c: gather(c, dtype=torch.int32),
        "all_gather_into float32 x 3",
        "all_gather_into int32 x 3",
    ),
    "size": (gather, lambda c: gather(c, 4), "float32 x 3", "float32 x 4"),
    "root": (
        lambda c: c.broadcast(full(c), 0),
        lambda c: c.broadcast(full(c), 1),
        "root 0",
        "root 1",
    ),
    "reduction": (
        lambda c: c.all_reduce(full(c), "sum"),
        lambda c: c.all_reduce(full(c), "max"),
        "x 3 sum",
        "x 3 max",
    ),
    "order": (
        lambda c: in_turn(c, reduce, gather),
        lambda c: in_turn(c, gather, reduce),
        "all_reduce",
        "all_gather_into",
    ),
    "group": (
        lambda c: grouped(c, 2),
        lambda c: in_turn(c, gather, reduce),
        "all_gather_into",
        "all_reduce",
    ),
    "barrier": (lambda c: c.barrier(), gather, "all_gather_into uint8 x 64", "float32 x 3"),
}


def grouped(comm: Communicator, times: int) -> None:
    slots = [torch.empty(comm.size, 3) for _ in range(times)]
    with comm.group():
        for each in slots:
            comm.all_gather_into(each, full(comm))


@pytest.mark.parametrize("kind", MISMATCHES)
@pytest.mark.parametrize("odd", [0, 2])
def test_a_mismatch_raises_on_every_rank_naming_both_sides(
    monkeypatch: pytest.MonkeyPatch, kind: str, odd: int
) -> None:
    monkeypatch.setenv("DCP_COMM_CHECK", "0")
    usual, other, one, another = MISMATCHES[kind]
    found = errors(lambda comm: (other if comm.rank == odd else usual)(comm), 3)
    assert [type(error) for error in found] == [CommMismatch] * 3
    for error in found:
        assert one in str(error)
        assert another in str(error)
        assert f"rank {odd}: " in str(error)


@pytest.mark.parametrize("kind", sorted(MISMATCHES.keys() - {"barrier", "group"}))
def test_fingerprints_find_the_same_before_anything_moves(kind: str) -> None:
    usual, other, one, another = MISMATCHES[kind]
    found = errors(lambda comm: (other if comm.rank == 1 else usual)(comm), 3)
    assert [type(error) for error in found] == [CommMismatch] * 3
    assert all(one[:30] in str(error) and another[:30] in str(error) for error in found)


def test_a_mismatch_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DCP_COMM_CHECK", "0")

    def work(comm: Communicator) -> bool:
        output = torch.full((2, 3), 7.0)
        with pytest.raises(CommMismatch):
            comm.all_gather_into(
                output if comm.rank else output.int(),
                full(comm, dtype=output.dtype) if comm.rank else full(comm).int(),
            )
        return bool((output == 7).all())

    assert run_ranks(work, 2) == [True, True]


def test_sends_and_receives_of_different_size_do_not_match() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(torch.zeros(3), 1)
        elif comm.rank == 1:
            comm.recv(torch.zeros(4), 0)
        else:
            comm.barrier()

    found = errors(work, 3)
    assert [type(error) for error in found] == [CommMismatch] * 3
    assert "rank 0: send float32 x 3 peer 1" in str(found[2])
    assert "rank 1: recv float32 x 4 peer 0" in str(found[2])
