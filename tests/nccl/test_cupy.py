"""The CuPy backend over a CuPy that is not there: id forms, codes, and who ends what."""

import gc
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist

from dcp_comm.backends import cupy_nccl
from dcp_comm.backends.cupy_nccl import CupyBackend, CupyHandle, as_bytes, in_its_form, result
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import BackendUnavailable, CommPeerLost, CommTimeout
from dcp_comm.rendezvous import Rendezvous
from tests.nccl.conftest import Stream

SECRET = bytes(range(100, 228))
SIGNED = tuple(each - 256 if each > 127 else each for each in SECRET)


class NcclError(RuntimeError):
    """CuPy's, which knows the codes up to 5."""

    def __init__(self, status: int) -> None:
        self.status = status
        names = {1: "CUDA", 2: "SYSTEM", 3: "INTERNAL", 4: "ARGUMENT", 5: "USAGE"}
        super().__init__(names[status])


class Communicator:
    """What it was told; fails with ``code`` when one is set."""

    made: ClassVar[list["Communicator"]] = []
    ended: ClassVar[list[str]] = []

    def __init__(self, size: int, unique_id: object, rank: int) -> None:
        if not isinstance(unique_id, form):
            raise TypeError(f"Argument 'commId' has incorrect type: {type(unique_id)}")
        self.place, self.code, self.calls = (size, rank), 0, list[tuple[object, ...]]()
        self.made.append(self)

    def __getattr__(self, name: str) -> object:
        def call(*arguments: int) -> None:
            self.calls.append((name, *arguments))
            if self.code:
                raise NcclError(self.code)

        return call

    def __del__(self) -> None:
        self.ended.append("by the garbage collector")


form: type = bytes


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module tree with what the backend uses."""
    nccl = ModuleType("cupy.cuda.nccl")
    group: list[str] = []
    parts = {
        "NcclError": NcclError,
        "NcclCommunicator": Communicator,
        "get_unique_id": lambda: SECRET if form is bytes else SIGNED,
        "get_version": lambda: 22703,
        "groupStart": lambda: group.append("start"),
        "groupEnd": lambda: group.append("end"),
        "group": group,
    }
    for name, part in parts.items():
        setattr(nccl, name, part)
    cuda = SimpleNamespace(nccl=nccl)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", nccl)
    Communicator.made.clear()
    Communicator.ended.clear()
    return nccl


def connect(gpu: torch.device) -> tuple[CupyBackend, Communicator]:
    meeting = Rendezvous(0, 2, dist.HashStore(), "w", gpu, 5.0, Deadline(5.0))
    return CupyBackend.connect(meeting), Communicator.made[-1]


@pytest.mark.parametrize("kind", [bytes, tuple])
def test_the_id_is_given_in_the_form_that_this_cupy_takes(
    cupy: ModuleType, gpu: torch.device, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    monkeypatch.setitem(globals(), "form", kind)
    assert CupyBackend._make_id() == SECRET
    backend, communicator = connect(gpu)
    assert communicator.place == (2, 0)
    backend.close(Deadline(2.0))


def test_chars_may_be_signed_or_not() -> None:
    assert as_bytes(SIGNED) == as_bytes(tuple(SECRET)) == as_bytes(SECRET) == SECRET

    def unsigned_only(size: int, unique_id: object, rank: int) -> object:
        if not isinstance(unique_id, tuple):
            raise TypeError
        if min(unique_id) < 0:
            raise OverflowError
        return unique_id

    assert in_its_form(unsigned_only, 2, SECRET, 0) == tuple(SECRET)


def test_calls_name_pointers_counts_codes_and_stream(cupy: ModuleType, gpu: torch.device) -> None:
    backend, communicator = connect(gpu)
    whole, part = torch.zeros(2, 3), torch.zeros(3)
    stream: torch.cuda.Stream = Stream()  # type: ignore[assignment]
    for call in (
        Call("all_gather_into", whole, part),
        Call("reduce_scatter_into", part, whole, reduce="min"),
        Call("all_reduce", part, part, reduce="prod"),
        Call("broadcast", part, part, peer=1),
    ):
        backend.issue([call], stream, Deadline(1.0))
    backend.issue([Call("all_to_all_into", whole, whole.clone())], stream, Deadline(1.0))
    at, to, on = part.data_ptr(), whole.data_ptr(), Stream.cuda_stream
    calls = [call for call in communicator.calls if call[0] != "check_async_error"]
    assert calls[:4] == [
        ("allGather", at, to, 12, 1, on),
        ("reduceScatter", to, at, 3, 7, 3, on),
        ("allReduce", at, at, 3, 7, 1, on),
        ("broadcast", at, at, 12, 1, 1, on),
    ]
    assert [call[0] for call in calls[4:]] == ["send", "recv", "send", "recv"]
    assert cupy.group == ["start", "end"]
    backend.close(Deadline(2.0))


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 8])
def test_codes_come_out_also_where_cupys_error_cannot_be_made(cupy: ModuleType, code: int) -> None:
    def call() -> None:
        if code:
            raise NcclError(code)

    assert result(call) == code


def test_errors_are_ours(cupy: ModuleType, gpu: torch.device) -> None:
    backend, communicator = connect(gpu)
    tensor = torch.zeros(1)
    stream: torch.cuda.Stream = Stream()  # type: ignore[assignment]
    communicator.code = 6
    with pytest.raises(CommPeerLost):
        backend.issue([Call("send", tensor, tensor, peer=1)], stream, Deadline(1.0))
    communicator.code = 8
    with pytest.raises((CommTimeout, CommPeerLost)):
        backend.check()
    backend.close(Deadline(2.0))


def test_an_init_that_fails_is_worded_by_us(
    cupy: ModuleType, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> object:
        raise NcclError(6)

    monkeypatch.setattr(cupy, "NcclCommunicator", refuse)
    meeting = Rendezvous(0, 2, dist.HashStore(), "w", gpu, 5.0, Deadline(5.0))
    with pytest.raises(CommPeerLost, match="NcclCommunicator: NCCL result 6"):
        CupyBackend.connect(meeting)


def test_the_garbage_collector_never_ends_a_communicator(cupy: ModuleType) -> None:
    """CuPy's destructor would call ncclCommDestroy wherever the collector happens to run."""
    handle = CupyHandle(Communicator(2, SECRET, 0))
    Communicator.made.clear()
    del handle
    gc.collect()
    assert Communicator.ended == []


def test_a_cupy_that_is_not_installed_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cupy_nccl, "find_spec", lambda name: None)
    assert CupyBackend._missing().startswith("CuPy is not installed: pip install cupy-cuda")


def test_a_cupy_without_nccl_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_nccl, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "cupy.cuda.nccl: " in CupyBackend._missing()
    with pytest.raises(BackendUnavailable):
        CupyBackend.library(torch.device("cuda", 0))
