"""The fake backend: real data, and the faults that no real backend tells apart."""

import threading
import time

import pytest
import torch
import torch.distributed as dist

from dcp_comm.backends.fake import FakeBackend, FakeControl
from dcp_comm.communicator import Communicator
from dcp_comm.deadline import Deadline
from dcp_comm.errors import (
    BackendUnavailable,
    CommClosed,
    CommMismatch,
    CommPeerLost,
    CommTimeout,
)
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.testing import run_ranks
from tests.ranks import errors, gather


def test_a_deadlock_of_sends_is_found_at_once() -> None:
    """Mutual sends outside a group wait for one another for ever."""
    started = time.monotonic()
    found = errors(lambda comm: comm.send(torch.zeros(3), (comm.rank + 1) % comm.size), 3)
    assert [type(error) for error in found] == [CommMismatch] * 3
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("raises", [True, False])
def test_a_rank_that_ends_wakes_its_waiters(raises: bool) -> None:
    waited = {}

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            time.sleep(0.05)
            if raises:
                raise MemoryError
            return
        started = time.monotonic()
        with pytest.raises(CommPeerLost, match="rank 1 has"):
            gather(comm)
        waited[comm.rank] = time.monotonic() - started

    if raises:
        with pytest.raises(MemoryError):
            run_ranks(work, 4, timeout=60)
    else:
        run_ranks(work, 4, timeout=60)
    assert set(waited) == {0, 2, 3}
    assert max(waited.values()) < 1


@pytest.mark.parametrize("missing", [(0,), (1, 2)])
def test_missing_ranks_are_named(missing: tuple[int, ...]) -> None:
    release = threading.Event()

    def work(comm: Communicator) -> None:
        if comm.rank in missing:
            release.wait()
        else:
            try:
                gather(comm)
            finally:
                release.set()

    found = errors(work, 4, timeout=0.3)
    named = ", ".join(map(str, missing))
    for rank, error in enumerate(found):
        if rank not in missing:
            assert isinstance(error, CommTimeout | CommPeerLost)
    first = next(error for error in found if isinstance(error, CommTimeout))
    assert f"not matched within 0.3 s; missing rank {named}" in str(first)


def test_a_missing_sender_is_named() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.recv(torch.zeros(3), 2)
        else:
            time.sleep(0.6)

    found = errors(work, 3, timeout=0.3)
    assert "recv float32 x 3 peer 2: not matched within 0.3 s; missing rank 2" in str(found[0])


def test_parts_know_when_a_rank_ended() -> None:
    waited = []

    def work(comm: Communicator) -> None:
        part = comm.split(comm.rank % 2)
        assert part is not None
        grandchild = part.split(0)
        assert grandchild is not None
        if comm.rank == 3:
            raise MemoryError
        if comm.rank == 1:
            started = time.monotonic()
            with pytest.raises(CommPeerLost):
                gather(grandchild)
            waited.append(time.monotonic() - started)
        else:
            assert gather(grandchild) == [0, 1]

    with pytest.raises(MemoryError):
        run_ranks(work, 4)
    assert waited[0] < 1


def test_an_abort_wakes_the_others() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.abort()
        gather(comm)

    found = errors(work, 3)
    assert [type(error) for error in found] == [CommClosed, CommPeerLost, CommPeerLost]
    assert "rank 0 has failed or was aborted" in str(found[1])


def test_a_close_from_another_thread_wakes_the_waiter() -> None:
    def work(comm: Communicator) -> float:
        if comm.rank == 1:
            time.sleep(0.4)
            return 0.0
        threading.Timer(0.05, comm.close).start()
        started = time.monotonic()
        with pytest.raises(CommClosed, match="was closed"):
            gather(comm)
        return time.monotonic() - started

    assert run_ranks(work, 2)[0] < 0.3


def test_sends_and_receives_cross_collectives_of_other_ranks() -> None:
    """A late pair does not hold up what others do, and messages of one pair keep their order."""

    def work(comm: Communicator) -> list[float]:
        note = torch.zeros(1)
        found = []
        for turn in range(5):
            if comm.rank == 0:
                comm.send(torch.full((1,), float(turn)), 2)
            elif comm.rank == 2:
                comm.recv(note, 0)
                found.append(note.item())
            assert gather(comm) == [0, 1, 2]
        return found

    assert run_ranks(work, 3)[2] == [0, 1, 2, 3, 4]


def test_messages_of_one_group_keep_their_order() -> None:
    def work(comm: Communicator) -> list[float]:
        notes = torch.zeros(6)
        with comm.group():
            for turn in range(6):
                if comm.rank == 0:
                    comm.send(torch.full((1,), float(turn)), 1)
                elif comm.rank == 1:
                    comm.recv(notes[turn : turn + 1], 0)
        return notes.tolist()

    assert run_ranks(work, 3)[1] == [0, 1, 2, 3, 4, 5]


def test_inputs_keep_their_bytes_and_version() -> None:
    """Not even a write of the same bytes: autograd would take it for a change."""

    def work(comm: Communicator) -> None:
        for dtype in (torch.float32, torch.bool, torch.complex64, torch.float8_e4m3fn):
            input = torch.empty(comm.size, 3, dtype=dtype).zero_()
            version, address = input._version, input.data_ptr()
            comm.all_gather_into(torch.empty(comm.size, comm.size, 3, dtype=dtype), input)
            comm.all_to_all_into(torch.empty(comm.size, 3, dtype=dtype), input)
            if dtype == torch.float32:
                comm.reduce_scatter_into(torch.empty(3), input)
            assert (input._version, input.data_ptr()) == (version, address)

    run_ranks(work, 3)


def test_a_rank_sees_data_of_the_time_of_its_call() -> None:
    """What is returned may be overwritten: no peer still reads it."""

    def work(comm: Communicator) -> None:
        own, slots = torch.empty(1000), torch.empty(comm.size, 1000)
        for turn in range(50):
            own.fill_(turn * comm.size + comm.rank)
            comm.all_gather_into(slots, own)
            own.fill_(-1)
            wanted = [turn * comm.size + rank for rank in range(comm.size)]
            assert slots.unique(dim=1).flatten().tolist() == wanted

    run_ranks(work, 4)


def test_it_cannot_join_processes() -> None:
    device, store = torch.device("cpu"), dist.HashStore()
    meeting = Rendezvous(0, 2, store, "world", device, 1.0, Deadline(1.0))
    for connect in (FakeBackend.connect, FakeControl.connect):
        with pytest.raises(BackendUnavailable, match="run_ranks"):
            connect(meeting)
