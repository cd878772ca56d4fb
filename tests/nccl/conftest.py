"""A stub libnccl, compiled once a version, and a CUDA device that is not there."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dcp_comm import nccl_life
from dcp_comm.nccl_library import VARIABLE

SOURCE = Path(__file__).with_name("stub.c")
COMM, PART = 0x7F0123456789, 0x7F9876543210
STREAM = 0x7FABCDEF0123


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

    def identify(self, size: int, rank: int, device: int) -> None:
        """What every communicator says of itself."""
        self._library.stub_identity(size, rank, device)


class Event:
    """What the stub's stream records; done when a test says so."""

    def __init__(self) -> None:
        self.done = True

    def query(self) -> bool:
        return self.done


class Stream:
    """A stream of the GPU that is not there."""

    cuda_stream = STREAM

    def __init__(self) -> None:
        self.event, self.recorded = Event(), 0

    def record_event(self) -> Event:
        self.recorded += 1
        return self.event


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
    monkeypatch.setattr(nccl_life, "captures", lambda stream: False)
    return torch.device("cuda", 0)
