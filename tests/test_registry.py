"""Backends by name: ours, everybody else's, and why one cannot work."""

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import torch

from dcp_comm import registry
from dcp_comm.backend import Backend, Capabilities
from dcp_comm.backends.fake import FakeBackend
from dcp_comm.backends.torch_distributed import TorchBackend
from dcp_comm.errors import BackendUnavailable, CommArgumentError, CommUsageError

CPU = torch.device("cpu")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """An importable module of somebody else."""
    made = ModuleType("somebody_elses")
    monkeypatch.setitem(sys.modules, "somebody_elses", made)
    return made


def plug(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    """Pretend that packages with these entry points are installed."""
    found = [EntryPoint(name, value, registry.ENTRY_POINT_GROUP) for name, value in points]

    def entry_points(*, group: str) -> Sequence[EntryPoint]:
        return found if group == registry.ENTRY_POINT_GROUP else []

    monkeypatch.setattr(registry, "entry_points", entry_points)


class Elsewhere(TorchBackend):
    """Works nowhere near here."""

    capabilities = Capabilities(devices=("cpu",))

    @classmethod
    def unavailable(cls) -> str:
        return "wrong planet"


def test_built_in_backends_are_listed_first_and_in_order() -> None:
    infos = registry.list_backends()
    assert [info.name for info in infos][: len(registry.BUILT_IN)] == list(registry.BUILT_IN)
    by_name = {info.name: info for info in infos}
    assert by_name["torch"].available
    assert by_name["torch"].capabilities == TorchBackend.capabilities
    assert all(bool(info.reason) != info.available for info in infos)


def test_classes_are_loaded_by_name() -> None:
    assert registry.load("torch") is TorchBackend
    assert registry.load("fake") is FakeBackend


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    need = r"init: backend: got 'nccl', need one of auto, .*torch, fake"
    with pytest.raises(CommArgumentError, match=need):
        registry.load("nccl")


def test_another_packages_backend_is_found(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType
) -> None:
    module.Elsewhere = Elsewhere  # type: ignore[attr-defined]
    plug(monkeypatch, ("elsewhere", "somebody_elses:Elsewhere"))
    assert registry.load("elsewhere") is Elsewhere
    info = registry.list_backends()[-1]
    assert info == registry.BackendInfo("elsewhere", False, "wrong planet", Elsewhere.capabilities)


def test_the_same_entry_twice_is_one_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, ("torch", registry.BUILT_IN["torch"]), *[("x", "m:X")] * 2)
    assert [info.name for info in registry.list_backends()] == [*registry.BUILT_IN, "x"]


@pytest.mark.parametrize(
    "points", [[("torch", "mine:Torch")], [("mine", "one:Mine"), ("mine", "two:Mine")]]
)
def test_a_name_claimed_twice_is_an_error(
    monkeypatch: pytest.MonkeyPatch, points: list[tuple[str, str]]
) -> None:
    plug(monkeypatch, *points)
    with pytest.raises(CommUsageError, match=r"is claimed twice: .* and .*Uninstall one"):
        registry.list_backends()
    with pytest.raises(CommUsageError, match="claimed twice"):
        registry.load("fake")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("nowhere_at_all:X", "No module named 'nowhere_at_all'"),
        ("somebody_elses:Missing", "has no attribute 'Missing'"),
        ("somebody_elses:text", "is no dcp_comm.backend.Backend"),
        ("somebody_elses:Plain", "is no dcp_comm.backend.Backend"),
    ],
)
def test_what_cannot_be_loaded_says_why(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, target: str, words: str
) -> None:
    module.text, module.Plain = "text", dict  # type: ignore[attr-defined]
    plug(monkeypatch, ("broken", target))
    with pytest.raises(BackendUnavailable, match=words) as caught:
        registry.load("broken")
    assert isinstance(caught.value, ImportError)
    info = registry.list_backends()[-1]
    assert (info.available, info.capabilities) == (False, None)
    assert words in info.reason


def test_automatic_takes_the_first_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.automatic(CPU) == "torch"
    monkeypatch.setattr(registry, "AUTOMATIC", ("torch", "fake"))
    monkeypatch.setattr(TorchBackend, "unavailable", classmethod(lambda cls: "not today"))
    assert registry.automatic(CPU) == "fake"


def test_automatic_says_why_none_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "AUTOMATIC", ("torch",))
    monkeypatch.setattr(TorchBackend, "unavailable", classmethod(lambda cls: "not today"))
    with pytest.raises(BackendUnavailable, match="device cpu: torch: not today"):
        registry.automatic(CPU)
    monkeypatch.undo()
    monkeypatch.setattr(registry, "AUTOMATIC", ("torch",))
    with pytest.raises(BackendUnavailable, match="torch: does not move meta tensors"):
        registry.automatic(torch.device("meta"))


def test_a_backend_is_a_backend() -> None:
    assert all(issubclass(registry.load(name), Backend) for name in ("torch", "fake"))
