"""Backend "torch" and what is under it: gloo between threads of this process."""

import contextlib
import gc
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from dcp_comm import gloo
from dcp_comm.backends.torch_distributed import TorchBackend
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import (
    CommClosed,
    CommPeerLost,
    CommTimeout,
    DcpCommError,
)
from dcp_comm.settings import Settings
from tests.threads import join, joiners

UNCHECKED = Settings(check="0")
NEW, OLD = (
    {"all_gather": "all_gather_single", "reduce_scatter": "reduce_scatter_single"},
    {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"},
)


def backend_of(comm: Communicator) -> TorchBackend:
    backend = comm._channel.backend
    assert isinstance(backend, TorchBackend)
    return backend


def gather(comm: Communicator) -> list[int]:
    slots = torch.full((comm.size,), -1)
    comm.all_gather_into(slots, torch.tensor(comm.rank))
    return slots.tolist()


@pytest.mark.parametrize("names", [NEW, OLD], ids=["new names", "old names"])
def test_torchs_collectives_work_under_both_names(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, str]
) -> None:
    """As on CUDA: the calls themselves, blocking, with real data; 2.10 to 2.12 have no new ones."""
    if not hasattr(dist, names["all_gather"]):
        pytest.skip("this torch has only the old names")
    if names is OLD:
        for new in NEW.values():
            monkeypatch.delattr(dist, new, raising=False)

    def work(comm: Communicator) -> tuple[list[int], list[int]]:
        backend = backend_of(comm)
        assert backend._all_gather.__name__ == names["all_gather"]
        assert backend._reduce_scatter.__name__ == names["reduce_scatter"]
        whole, part = torch.full((comm.size, 2), -1), torch.full((2,), comm.rank)
        group = backend._require_group()
        backend._start(group, Call("all_gather_into", whole, part), in_background=False)
        gathered = whole[:, 0].tolist()
        backend._start(
            group, Call("reduce_scatter_into", part, whole, reduce="sum"), in_background=False
        )
        return gathered, part.tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = join(joiners(2), work)
    assert found == [([0, 1], [0, 0]), ([0, 1], [2, 2])]


def test_the_new_names_are_preferred() -> None:
    found = join(joiners(2), lambda comm: backend_of(comm)._all_gather.__name__)
    wanted = NEW if hasattr(dist, NEW["all_gather"]) else OLD
    assert found == [wanted["all_gather"]] * 2


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[/pytorch/third_party/gloo/pair.cc:525] Connection closed by peer [::1]", CommPeerLost),
        ("Read error [127.0.0.1]:1234: Connection reset by peer", CommPeerLost),
        ("Application timeout caused pair closure", CommPeerLost),
        ("Broken pipe", CommPeerLost),
        ("Timed out waiting 2000ms for recv operation to complete", CommTimeout),
        ("Wait timeout", CommTimeout),
        ("something else entirely", DcpCommError),
    ],
)
def test_torchs_errors_become_ours(text: str, kind: type[DcpCommError]) -> None:
    error = gloo.translate(RuntimeError(f"{text}\nException raised from a.cc:1\nframe #0"), "send")
    assert type(error) is kind
    assert str(error).startswith("send: ")
    assert "frame" not in str(error)
    assert ".cc:" not in str(error)


def sockets() -> int:
    """How many this process has open."""
    folder = Path("/proc/self/fd")
    return sum(
        os.path.realpath(each).rpartition("/")[2].startswith("socket:") for each in folder.iterdir()
    )


def test_a_call_that_failed_keeps_no_connection_open() -> None:
    """Peers learn of it when they are closed, which must not wait for a garbage collection."""

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            time.sleep(1.0)
        else:
            with contextlib.suppress(CommTimeout):
                gather(comm)

    gc.collect()
    before = sockets()
    gc.disable()
    try:
        join(joiners(3, settings=UNCHECKED), work, timeout=0.3)
        assert Deadline(5.0).poll(lambda: sockets() == before)
    finally:
        gc.enable()


def waits(work: Callable[[Communicator], object]) -> Callable[[Communicator], float]:
    """How long a call waits until it fails for want of time."""

    def timed(comm: Communicator) -> float:
        if comm.rank == 1:
            time.sleep(1.2)
            return 0.0
        started = time.monotonic()
        with pytest.raises(CommTimeout, match=r"within 0.5 s"):
            work(comm)
        with pytest.raises(CommTimeout):
            comm.check()
        return time.monotonic() - started

    return timed


@pytest.mark.parametrize(
    "work",
    [
        gather,
        lambda comm: comm.all_reduce(torch.zeros(3)),
        lambda comm: comm.reduce_scatter_into(torch.zeros(3), torch.zeros(2, 3)),
        lambda comm: comm.all_to_all_into(torch.zeros(2), torch.zeros(2)),
        lambda comm: comm.broadcast(torch.zeros(3), 1),
        lambda comm: comm.recv(torch.zeros(3), 1),
        lambda comm: comm.barrier(),
        lambda comm: comm.split(0),
    ],
    ids=["gather", "reduce", "scatter", "exchange", "broadcast", "recv", "barrier", "split"],
)
def test_every_wait_ends_at_the_deadline(work: Callable[[Communicator], object]) -> None:
    """Not a second later, when gloo's own timeout would end it."""
    found = join(joiners(2, settings=UNCHECKED), waits(work), timeout=0.5)
    assert 0.5 <= found[0] < 1.4, found


def test_what_was_closed_is_gone() -> None:
    def work(comm: Communicator) -> None:
        backend = backend_of(comm)
        comm.close()
        comm.abort()
        with pytest.raises(CommClosed, match="was closed"):
            gather(comm)
        with pytest.raises(CommClosed, match="the process group was dropped"):
            backend._require_group()

    assert join(joiners(2), work) == [None, None]


def test_a_rank_that_aborts_is_noticed_at_once() -> None:
    def work(comm: Communicator) -> float:
        gather(comm)
        if comm.rank == 1:
            comm.abort()
            return 0.0
        started = time.monotonic()
        with pytest.raises(CommPeerLost, match="a peer is gone"):
            gather(comm)
        return time.monotonic() - started

    found = join(joiners(2), work)
    assert found[0] < 2, found


def test_its_library_is_named() -> None:
    assert TorchBackend.library(torch.device("cpu")) == f"gloo of torch {torch.__version__}"
    assert TorchBackend.unavailable() == ""


def test_misaligned_memory_moves_too() -> None:
    """Torch makes no such tensors; numpy and foreign buffers do."""

    def work(comm: Communicator) -> list[float]:
        memory = bytearray(9)
        input = torch.frombuffer(memory, dtype=torch.float32, offset=1)
        input.fill_(comm.rank + 0.5)
        output = torch.zeros(comm.size, 2)
        comm.all_gather_into(output, input)
        return output[:, 1].tolist()

    assert join(joiners(2), work) == [[0.5, 1.5]] * 2
