"""A stub libnccl, compiled once a version, and a CUDA device that is not there."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from dcp_comm.backends.pynccl import PyNcclBackend
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.nccl import watch
from dcp_comm.nccl.library import VARIABLE
from dcp_comm.rendezvous import Rendezvous

SOURCE = Path(__file__).with_name("stub.c")
COMM, PART = 0x7F0123456789, 0x7F9876543210
STREAM = 0x7FABCDEF0123
PATIENCE = 30.0
"""Seconds for what happens at once where the machine is not loaded."""


class Stub:
    """A compiled stub and the strings it is moved by."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.stub_history.restype = ctypes.c_char_p
        self._library.stub_reset()

    @property
    def history(self) -> list[str]:
        """The calls so far, one a line: name and arguments."""
        text: bytes = self._library.stub_history()
        return text.decode().splitlines()

    @property
    def names(self) -> list[str]:
        """The names of the calls so far."""
        return [line.split()[0] for line in self.history]

    def fail(self, name: str, code: int) -> None:
        """Have a function return a result code."""
        self._library.stub_fail(name.encode(), code)

    def hang(self, name: str) -> None:
        """Have a function block until `release`."""
        self._library.stub_hang(name.encode())

    def release(self) -> None:
        """Let what hangs go on."""
        self._library.stub_release()

    def report(self, code: int, after: int = 0) -> None:
        """Answer "in progress" so many times, then with this asynchronous error."""
        self._library.stub_async(after, code)

    def looked(self) -> None:
        """Wait until what is so now has been seen by a watch: a look that begins from here on."""
        begun = self._library.stub_looks()
        assert Deadline(PATIENCE).poll(lambda: self._library.stub_looks() >= begun + 2)

    def aborted(self) -> bool:
        """Wait for the communicator's end by force; whether it came."""
        return Deadline(PATIENCE).poll(lambda: self.names[-1] == "ncclCommAbort")

    def identify(self, size: int, rank: int, device: int) -> None:
        """What every communicator says of itself."""
        self._library.stub_identity(size, rank, device)


class Clock:
    """What a watch takes for the time; it stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Stream:
    """A stream of the GPU that is not there; events on it have passed, up to where it is stuck."""

    cuda_stream = STREAM

    def __init__(self, stuck_after: int = 1 << 30) -> None:
        self.recorded, self.stuck_after = 0, stuck_after

    def record_event(self) -> SimpleNamespace:
        self.recorded += 1
        number = self.recorded
        return SimpleNamespace(query=lambda: number <= self.stuck_after)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Compile a version of the stub, once."""
    folder, done = tmp_path_factory.mktemp("stub"), dict[int, Path]()

    def compile_version(version: int) -> Path:
        if version not in done:
            path = folder / f"libstub-{version}.so"
            flags = ["-shared", "-fPIC", "-O1", f"-DVERSION={version}", "-o", str(path)]
            subprocess.run(["cc", *flags, str(SOURCE)], check=True, timeout=60)
            done[version] = path
        return done[version]

    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    return compile_version


@pytest.fixture
def stub(
    compiled: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], Stub]]:
    """Make a version of the stub the libnccl of this process; what hangs is released at the end."""
    used: list[Stub] = []

    def use(version: int = 22809) -> Stub:
        used.append(Stub(compiled(version)))
        monkeypatch.setenv(VARIABLE, used[-1].path)
        return used[-1]

    yield use
    for each in used:
        each.release()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Pretend that there is a GPU, whose work is done at once."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(watch, "captures", lambda stream: False)
    return torch.device("cuda", 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the time by which watches say that something is late."""
    found = Clock()
    monkeypatch.setattr(watch, "time", found)
    return found


Connect = Callable[..., tuple[PyNcclBackend, Stub]]


def meeting(
    gpu: torch.device, timeout: float = 5.0, store: dist.Store | None = None, **more: object
) -> Rendezvous:
    """Where rank 0 of two meets nobody."""
    place = dist.HashStore() if store is None else store
    return Rendezvous(0, 2, place, "w", gpu, timeout, Deadline(PATIENCE), **more)  # type: ignore[arg-type]


@pytest.fixture
def connect(stub: Callable[[int], Stub], gpu: torch.device) -> Iterator[Connect]:
    """Bring up rank 0 of 2 over a version of the stub."""
    made: list[PyNcclBackend] = []

    def up(version: int = 22809, **more: object) -> tuple[PyNcclBackend, Stub]:
        library = stub(version)
        made.append(PyNcclBackend.connect(meeting(gpu, **more)))  # type: ignore[arg-type]
        return made[-1], library

    yield up
    for backend in made:
        backend.close(Deadline(2.0))


def issue(backend: PyNcclBackend, *calls: Call) -> None:
    """Launch calls on a stream of their own, whose work is done at once."""
    backend.issue(calls, Stream(), Deadline(0.5))  # type: ignore[arg-type]
