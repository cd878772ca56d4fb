"""From a launch to a meeting point: variables, membership, a store that is not trusted."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dcp_comm import agreement, bootstrap
from dcp_comm.bootstrap import Launch
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout, CommUsageError, DcpCommError
from dcp_comm.rendezvous import Rendezvous
from tests.processes import launcher_variables

GOOD = launcher_variables(1, 4, 1234)


def meeting(store: dist.Store, rank: int = 0, size: int = 2, timeout: float = 5) -> Rendezvous:
    device = torch.device("cpu")
    return Rendezvous(rank, size, store, "world", device, timeout, Deadline(timeout))


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at once; what each returned or raised."""
    found: list[Any] = [None] * len(calls)

    def body(place: int) -> None:
        try:
            found[place] = calls[place]()
        except DcpCommError as error:
            found[place] = error

    threads = [threading.Thread(target=body, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_a_launchers_variables_are_read() -> None:
    found = Launch.from_environment({**GOOD, "TORCHELASTIC_RUN_ID": "job7"})
    assert found == Launch(1, 4, 1, "127.0.0.1", 1234, "job7/0", agent_store=False)
    torchrun = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    found = Launch.from_environment({**GOOD, **torchrun})
    assert (found.run, found.agent_store) == ("none/2", True)


@pytest.mark.parametrize("missing", [*GOOD])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_variable_names_the_launcher(missing: str, value: str | None) -> None:
    variables = {name: text for name, text in GOOD.items() if name != missing}
    if value is not None:
        variables[missing] = value
    with pytest.raises(CommUsageError, match=f"init: {missing} not set.*torchrun.*run_ranks"):
        Launch.from_environment(variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RANK", "4"),
        ("RANK", "-1"),
        ("RANK", "1.0"),
        ("RANK", "True"),
        ("RANK", "one"),
        ("RANK", " 1"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", "-4"),
        ("WORLD_SIZE", "4.0"),
        ("WORLD_SIZE", "99999999999999999999"),
        ("LOCAL_RANK", "-1"),
        ("LOCAL_RANK", "x"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("MASTER_PORT", "http"),
    ],
)
def test_junk_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(CommUsageError, match=f"init: {name}: got '{value}', need a whole number"):
        Launch.from_environment({**GOOD, name: value})


def test_the_device_is_the_local_ranks_gpu_or_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch.from_environment({**GOOD, "LOCAL_RANK": "3"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert launch.device() == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert launch.device() == torch.device("cuda", 1)


def test_each_entry_under_a_name_has_its_own_corner() -> None:
    store = dist.HashStore()
    first = [bootstrap.enter(store, "world", rank, Deadline(10.0)) for rank in (0, 1)]
    second = [bootstrap.enter(store, "world", rank, Deadline(10.0)) for rank in (1, 0)]
    assert [name for _, name in first + second] == ["world", "world", "world.2", "world.2"]
    assert bootstrap.enter(store, "draft", 0, Deadline(10.0))[1] == "draft"
    first[0][0].set("key", "old")
    assert not second[1][0].check(["key"])
    assert first[1][0].get("key") == b"old"


def test_all_ranks_get_all_records_in_order() -> None:
    store = dist.HashStore()
    calls = [
        lambda rank=rank: bootstrap.meet(meeting(store, rank, 3), "stage", {"x": rank * rank})
        for rank in (2, 0, 1)
    ]
    for ranks in together(*calls):
        assert [(each["rank"], each["size"], each["x"]) for each in ranks] == [
            ("0", "3", "0"),
            ("1", "3", "1"),
            ("2", "3", "4"),
        ]


@pytest.mark.parametrize("present", [(0,), (1, 3)])
def test_missing_ranks_are_counted_and_named(present: tuple[int, ...]) -> None:
    store, started = dist.HashStore(), time.monotonic()
    calls = [
        lambda rank=rank: bootstrap.meet(meeting(store, rank, 4, 0.5), "stage", {})
        for rank in present
    ]
    missing = ", ".join(f"{rank}" for rank in range(4) if rank not in present)
    for error in together(*calls):
        assert isinstance(error, CommTimeout)
        assert (
            f"{len(present)}/4 ranks joined 'world' within 0.5 s; missing: {missing}" in f"{error}"
        )
    assert time.monotonic() - started < 1.5


def test_two_processes_in_one_place_fail_on_all_ranks() -> None:
    store = dist.HashStore()

    def come(rank: int) -> object:
        at = meeting(store, rank, 3)
        try:
            return bootstrap.meet(at, "stage", {})
        except DcpCommError as error:
            bootstrap.tell(at, error)
            raise

    found = together(*[lambda rank=rank: come(rank) for rank in (0, 1, 1)])
    assert [type(error) for error in found] == [CommMismatch] * 3
    assert all("rank 1 is claimed twice" in str(error) for error in found)


@pytest.mark.parametrize("sizes", [(2, 3), (3, 2)])
def test_other_world_sizes_fail_on_all_ranks(sizes: tuple[int, int]) -> None:
    store = dist.HashStore()
    calls = [
        lambda rank=rank, size=size: bootstrap.meet(meeting(store, rank, size), "stage", {})
        for rank, size in enumerate(sizes)
    ]
    found = together(*calls)
    assert [type(error) for error in found] == [CommMismatch] * 2
    assert f"says it is rank 1 of {sizes[1]}, here the world size is {sizes[0]}" in f"{found[0]}"


def test_records_of_another_version_fail_on_all_ranks() -> None:
    store = dist.HashStore()
    found = together(
        lambda: bootstrap.meet(meeting(store, 0), "stage", {"backend": "torch"}),
        lambda: bootstrap.meet(meeting(store, 1), "stage", {"backend": "torch", "new": "1"}),
    )
    assert [type(error) for error in found] == [CommMismatch] * 2
    assert "init: rank 1's record: got rank, size, backend, new, token, need" in str(found[0])
    assert "Install the same version" in str(found[1])


def test_word_of_a_failure_reaches_those_who_wait() -> None:
    store = dist.HashStore()

    def give_up() -> None:
        time.sleep(0.1)
        bootstrap.tell(meeting(store, 1), ValueError("no such device"))

    started = time.monotonic()
    error, _ = together(lambda: bootstrap.meet(meeting(store, 0), "stage", {}), give_up)
    assert isinstance(error, CommMismatch)
    assert "rank 1: ValueError('no such device')" in str(error)
    assert time.monotonic() - started < 2


def test_telling_a_store_that_is_gone_is_silent() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("Broken pipe")

    bootstrap.tell(meeting(Gone()), ValueError("x"))  # type: ignore[arg-type]


def test_a_store_that_goes_away_is_a_lost_peer() -> None:
    class Gone:
        def compare_set(self, *_: str) -> bytes:
            raise RuntimeError("Connection reset\nby the other side")

    with pytest.raises(CommPeerLost, match=r"init: joining: the store failed: Connection reset$"):
        bootstrap.meet(meeting(Gone()), "stage", {})  # type: ignore[arg-type]


HOSTILE = {
    "oversized": b"x" * (10 << 20),
    "a byte too long": b"x" * (agreement.RECORD_BYTES + 1),
    "not utf-8": bytes(range(128, 256)),
    "no fields": b"hello",
    "empty fields": b"=\n==\n",
    "another rank": b"rank=0\nsize=2",
    "another size": b"rank=1\nsize=20",
    "a number in other words": b"rank=01\nsize=2",
    "a pickle": b"cos\nsystem\n(S'touch /tmp/never'\ntR.",
}


@pytest.mark.parametrize("record", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_record_is_refused(record: bytes) -> None:
    store = dist.HashStore()
    store.set("stage/1", record)  # type: ignore[arg-type]
    started = time.monotonic()
    with pytest.raises(CommMismatch) as caught:
        bootstrap.meet(meeting(store), "stage", {})
    assert len(str(caught.value)) < 1000
    assert time.monotonic() - started < 2


def test_an_overwritten_record_of_ones_own_is_noticed() -> None:
    store = dist.HashStore()
    store.set("stage/0", "rank=0\nsize=2")
    with pytest.raises(CommMismatch, match="rank 0 is claimed twice"):
        bootstrap.meet(meeting(store), "stage", {})


def test_hostile_words_of_failure_are_cut() -> None:
    store = dist.HashStore()
    store.set("failed", "x" * 10**6)
    with pytest.raises(CommMismatch) as caught:
        bootstrap.meet(meeting(store), "stage", {})
    assert len(str(caught.value)) <= 1000


def test_epochs_that_are_no_number_are_refused() -> None:
    store = dist.HashStore()
    store.set("world/epoch/0", "junk")
    with pytest.raises(CommPeerLost, match="entering the store: the store failed"):
        bootstrap.enter(store, "world", 0, Deadline(10.0))


def test_nothing_is_left_in_the_environment() -> None:
    before = dict(os.environ)
    Launch.from_environment(GOOD)
    assert dict(os.environ) == before
