"""The unique id's way from rank 0 to the others, over a store that anybody may have written to."""

import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.nccl import codes
from dcp_comm.rendezvous import Rendezvous

SECRET = bytes(range(128, 256))


def meeting(store: dist.Store, rank: int, timeout: float = 5.0) -> Rendezvous:
    """Where two ranks meet."""
    device = torch.device("cpu")
    return Rendezvous(rank, 2, store, "world", device, timeout, Deadline(timeout))


def must_not_be_called() -> bytes:
    raise AssertionError("only rank 0 makes an id")


def test_raw_bytes_arrive_as_they_were() -> None:
    """All 128 of them have the high bit set, which is where text and C chars go wrong."""
    store, received = dist.HashStore(), list[bytes]()

    def receive() -> None:
        received.append(codes.exchange_id(meeting(store, 1), must_not_be_called))

    thread = threading.Thread(target=receive)
    thread.start()
    assert codes.exchange_id(meeting(store, 0), lambda: SECRET) == SECRET
    thread.join(10)
    assert received == [SECRET]


@pytest.mark.parametrize("length", [0, 1, 127, 129, 1 << 20])
def test_anything_that_is_no_id_is_refused_unread(length: int) -> None:
    store = dist.HashStore()
    store.set("nccl/id", "x" * length)
    with pytest.raises(CommMismatch, match=f"got {length} bytes, need 128 bytes"):
        codes.exchange_id(meeting(store, 1), must_not_be_called)


def test_a_rank_0_that_fails_tells_why() -> None:
    store = dist.HashStore()

    def fail() -> bytes:
        raise codes.error(2, "ncclGetUniqueId", "no interface eth7")

    with pytest.raises(DcpCommError, match="no interface eth7"):
        codes.exchange_id(meeting(store, 0), fail)
    with pytest.raises(CommPeerLost, match=r"rank 0 could not make one: .*no interface eth7"):
        codes.exchange_id(meeting(store, 1), must_not_be_called)


def test_a_rank_0_that_says_nothing_is_not_awaited_for_ever() -> None:
    with pytest.raises(CommTimeout, match=r"rank 0 gave none within 0\.2 s"):
        codes.exchange_id(meeting(dist.HashStore(), 1, 0.2), must_not_be_called)


def test_another_epochs_id_is_not_seen() -> None:
    store = dist.HashStore()
    codes.exchange_id(meeting(dist.PrefixStore("world", store), 0), lambda: SECRET)
    late = meeting(dist.PrefixStore("world.2", store), 1, 0.1)
    with pytest.raises(CommTimeout):
        codes.exchange_id(late, must_not_be_called)


def test_a_used_id_does_not_stay_in_the_store() -> None:
    store = dist.HashStore()
    codes.exchange_id(meeting(store, 0), lambda: SECRET)
    codes.forget_id(meeting(store, 0))
    assert not store.check(["nccl/id"])


class Gone(dist.Store):
    """A store whose server has died."""

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("Connection reset by peer")

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize(("rank", "make"), [(0, lambda: SECRET), (1, must_not_be_called)])
def test_a_lost_store_is_a_lost_peer(rank: int, make: Callable[[], bytes]) -> None:
    with pytest.raises(CommPeerLost) as caught:
        codes.exchange_id(meeting(Gone(), rank), make)
    assert SECRET.hex() not in str(caught.value)
