"""Coming up: in time, together, or not at all; what fails on one rank fails on all."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

import dcp_comm as dc
from dcp_comm import registry
from dcp_comm.backends.torch_distributed import TorchBackend
from dcp_comm.communicator import Communicator
from dcp_comm.errors import (
    BackendUnavailable,
    CommArgumentError,
    CommMismatch,
    CommPeerLost,
    CommTimeout,
    CommUsageError,
    DcpCommError,
)
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.settings import Settings
from tests.processes import free_port, launcher_variables
from tests.threads import Joiner, join, joiners


def under(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int, port: int, **variables: str
) -> None:
    """Pretend that a launcher started this process."""
    for name, value in {**launcher_variables(rank, size, port), **variables}.items():
        monkeypatch.setenv(name, value)


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Something that listens where the store should be; the port."""
    connections: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()


def test_without_a_launcher_it_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CommUsageError, match=r"RANK, WORLD_SIZE.* not set.*torchrun.*run_ranks"):
        dc.init()


@pytest.mark.parametrize("argument", ["timeout", "init_timeout"])
@pytest.mark.parametrize("value", [0, -1, None, float("inf"), float("nan"), "30", True])
def test_timeouts_are_finite_and_positive(
    monkeypatch: pytest.MonkeyPatch, argument: str, value: float
) -> None:
    under(monkeypatch, 0, 1, 1)
    with pytest.raises(CommArgumentError, match=f"init: {argument}: got .*, need a finite number"):
        dc.init(**{argument: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [1e-9, 25 * 86400.0, 1e12])
def test_very_short_and_very_long_timeouts_are_legal(
    monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    under(monkeypatch, 0, 1, 1)
    with dc.init("torch", "cpu", timeout=timeout) as comm:
        assert comm.timeout == timeout
        comm.all_reduce(torch.zeros(3))


def test_one_rank_alone_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, 0, 1, 1)
    with dc.init(device="cpu") as comm:
        output = torch.empty(1, 3)
        comm.all_gather_into(output, torch.ones(3))
        assert output.tolist() == [[1, 1, 1]]
        assert (comm.rank, comm.size, comm.backend, comm.name) == (0, 1, "torch", "world")


def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, 0, 1, 1)
    with pytest.raises(CommArgumentError, match="init: backend: got 'gloo', need one of auto"):
        dc.init("gloo", "cpu")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_starts_is_awaited_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    under(monkeypatch, rank, 3, free_port())
    started = time.monotonic()
    with pytest.raises(CommTimeout) as caught:
        dc.init("torch", "cpu", init_timeout=1.0)
    assert 0.9 < time.monotonic() - started < 2.0
    words = "1/3 ranks joined 'world' within 1 s; missing: 1, 2" if rank == 0 else "0 of 3 ranks"
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "serve",
    [
        lambda connection: None,
        lambda connection: connection.close(),
        lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        lambda connection: connection.sendall(bytes(range(256)) * 100),
    ],
    ids=["silent", "closing", "http", "junk"],
)
def test_what_is_no_store_is_found_out_by_the_deadline(
    monkeypatch: pytest.MonkeyPatch, serve: Callable[[socket.socket], None]
) -> None:
    with listener(serve) as port:
        under(monkeypatch, 1, 2, port)
        started = time.monotonic()
        with pytest.raises((CommTimeout, CommPeerLost), match=f"127.0.0.1:{port}|the store failed"):
            dc.init("torch", "cpu", init_timeout=1.5)
        assert time.monotonic() - started < 2.5


def test_a_taken_port_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        under(monkeypatch, 0, 2, server.getsockname()[1])
        started = time.monotonic()
        for _ in range(2):
            with pytest.raises(CommUsageError, match=r"rank 0 cannot listen .* already in use"):
                dc.init("torch", "cpu", init_timeout=10)
        assert time.monotonic() - started < 1


def test_an_address_of_another_host_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, 0, 2, free_port(), MASTER_ADDR="192.0.2.1")
    with pytest.raises(CommUsageError, match=r"rank 0 cannot listen on 192.0.2.1"):
        dc.init("torch", "cpu", init_timeout=10)


def test_a_failed_start_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    under(monkeypatch, 0, 2, free_port())
    for name in ("world", "world.2"):
        with pytest.raises(CommTimeout, match=f"1/2 ranks joined '{name}'"):
            dc.init("torch", "cpu", init_timeout=0.3)


def test_ranks_come_up_and_talk() -> None:
    def gather(comm: Communicator) -> list[int]:
        slots = torch.full((comm.size,), -1)
        comm.all_gather_into(slots, torch.tensor(comm.rank))
        return slots.tolist()

    assert join(joiners(3), gather) == [[0, 1, 2]] * 3
    assert join(joiners(3, backend="auto"), gather) == [[0, 1, 2]] * 3


def failures(
    ranks: list[Joiner], kind: type[DcpCommError], *, store: dist.Store | None = None
) -> list[str]:
    """The words in which each rank fails, soon and with one kind of error."""
    started = time.monotonic()
    found = join(ranks, store=store)
    assert [type(error) for error in found] == [kind] * len(ranks), found
    assert time.monotonic() - started < 8
    return [str(error) for error in found]


def test_world_sizes_that_differ_fail_on_all_ranks() -> None:
    for text in failures([Joiner(0, 2), Joiner(1, 3)], CommMismatch):
        assert "world size" in text


def test_a_rank_claimed_twice_fails_on_all_ranks() -> None:
    for text in failures([Joiner(0, 3), Joiner(1, 3), Joiner(1, 3)], CommMismatch):
        assert "rank 1 is claimed twice" in text


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"backend": "fake"}, "backend"), ({"device": "meta"}, "device")],
)
def test_ranks_that_ask_for_different_things_get_a_table(
    changes: dict[str, str], field: str
) -> None:
    odd = Joiner(1, 3, **changes)  # type: ignore[arg-type]
    for text in failures([Joiner(0, 3), odd, Joiner(2, 3)], CommMismatch):
        assert f"init: the ranks do not agree on {field}" in text
        assert f"1     {changes[field]}" in text


def test_an_unknown_backend_on_one_rank_is_told_to_all() -> None:
    found = join([Joiner(0, 2), Joiner(1, 2, backend="gloo")])
    assert isinstance(found[0], CommMismatch)
    assert "rank 1: CommArgumentError" in str(found[0])
    assert isinstance(found[1], CommArgumentError)


def test_a_backend_that_is_unavailable_says_so_on_all_ranks() -> None:
    for text in failures(joiners(2, backend="fake", device="meta"), BackendUnavailable):
        assert "init: backend fake cannot work on every rank" in text
        assert "backend fake does not move meta tensors" in text


def test_rank_zero_decides_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def automatic(device: torch.device) -> str:
        asked.append(threading.current_thread())
        return "torch"

    monkeypatch.setattr(registry, "automatic", automatic)
    assert join(joiners(3, backend="auto"), lambda comm: comm.backend) == ["torch"] * 3
    assert len(asked) == 1


def test_libraries_that_differ_get_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["gloo 1", "gloo 2"])
    monkeypatch.setattr(TorchBackend, "library", classmethod(lambda cls, device: next(versions)))
    for text in failures(joiners(2), CommMismatch):
        assert "the ranks do not agree on library" in text
        assert "gloo 1" in text
        assert "gloo 2" in text


def test_a_connection_that_fails_on_one_rank_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = TorchBackend.connect.__func__  # type: ignore[attr-defined]

    def failing(cls: type[TorchBackend], meeting: Rendezvous) -> TorchBackend:
        if meeting.rank == 1:
            raise MemoryError("no room")
        return connect(cls, meeting)  # type: ignore[no-any-return]

    monkeypatch.setattr(TorchBackend, "connect", classmethod(failing))
    before = threading.active_count()
    found = join(joiners(2), init_timeout=2.0)
    assert isinstance(found[1], MemoryError)
    assert isinstance(found[0], CommTimeout | CommPeerLost)
    time.sleep(0.2)
    assert threading.active_count() <= before + 1


def test_slots_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    issue = TorchBackend.issue

    def reversing(self: TorchBackend, calls: list[object], *rest: object) -> None:
        issue(self, calls, *rest)  # type: ignore[arg-type]
        for call in calls:
            call.output.copy_(call.output.flip(0).clone())  # type: ignore[attr-defined]

    monkeypatch.setattr(TorchBackend, "issue", reversing)
    for text in failures(joiners(2), CommMismatch):
        assert "slot order: got [1, 0], need rank order" in text


@pytest.mark.parametrize("stage", ["membership", "backend"])
def test_a_hostile_store_is_refused_on_all_ranks(stage: str) -> None:
    store = dist.HashStore()
    store.set(f"{stage}/1", "rank=1\nsize=2\nbackend=torch\ntoken=00")
    for text in failures(joiners(2), CommMismatch, store=store):
        assert "claimed twice" in text or "init: rank 1's record: got rank, size, backend" in text


def test_check_levels_are_taken_from_the_settings() -> None:
    def fingerprints(comm: Communicator) -> int:
        comm.ledger.reset()
        comm.all_reduce(torch.zeros(3))
        return comm.ledger.by_op["fingerprint"].calls if "fingerprint" in comm.ledger.by_op else 0

    for check, wanted in (("0", 0), ("merge", 0), ("all", 1)):
        assert join(joiners(2, settings=Settings(check=check)), fingerprints) == [wanted] * 2


def test_a_process_group_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CommUsageError, match=r"torch.distributed is not initialised"):
        dc.from_process_group()
    outside = -100  # what torch's new_group returns to ranks outside it
    with pytest.raises(CommUsageError, match="a process group that this rank belongs to"):
        dc.from_process_group(outside)  # type: ignore[arg-type]
