"""Backends by name: one table of our own, an entry-point group for everybody else's."""

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points

import torch

from dcp_comm.backend import Backend, Capabilities
from dcp_comm.errors import BackendUnavailable, CommArgumentError, CommUsageError, refusal

ENTRY_POINT_GROUP = "dcp_comm.backends"

BUILT_IN = {
    "pynccl": "dcp_comm.backends.pynccl:PyNcclBackend",
    "cupy": "dcp_comm.backends.cupy_nccl:CupyBackend",
    "torch": "dcp_comm.backends.torch_distributed:TorchBackend",
    "fake": "dcp_comm.backends.fake:FakeBackend",
}

AUTOMATIC = ("pynccl", "torch", "cupy")
"""What "auto" tries, best first."""


@dataclass(frozen=True)
class BackendInfo:
    """One line of `list_backends`.

    Attributes:
        name: What `init` takes as ``backend``.
        available: Whether it can work on this machine.
        reason: Why not; empty if it can.
        capabilities: What it can do; None where its class cannot even be imported.
    """

    name: str
    available: bool
    reason: str
    capabilities: Capabilities | None


def list_backends() -> tuple[BackendInfo, ...]:
    """Return every known backend, ours first, with the reason where one cannot work here.

    Raises:
        CommUsageError: Two packages claim one name.
    """
    return tuple(_describe(name) for name in _targets())


def load(name: str) -> type[Backend]:
    """Import and return a backend's class.

    Raises:
        CommArgumentError: No backend has this name.
        CommUsageError: Two packages claim one name.
        BackendUnavailable: Its module cannot be imported; the import's error is the cause.
    """
    target = require_known(name)
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"backend {name}: {target} cannot be loaded: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise BackendUnavailable(f"backend {name}: {target} is no dcp_comm.backend.Backend")
    return found


def require_known(name: str) -> str:
    """Return where a backend's class stands, as ``module:Class``.

    Raises:
        CommArgumentError: No backend has this name.
        CommUsageError: Two packages claim one name.
    """
    targets = _targets()
    if name not in targets:
        need = "one of " + ", ".join(("auto", *targets))
        remedy = f"Other packages register theirs in the entry-point group {ENTRY_POINT_GROUP}"
        raise CommArgumentError(refusal("init", "backend", repr(name), need, remedy=remedy))
    return targets[name]


def automatic(device: torch.device) -> str:
    """Return the best available backend for a device.

    Raises:
        BackendUnavailable: None can work; says why for each.
    """
    reasons = []
    for name in AUTOMATIC:
        info = _describe(name)
        fits = info.capabilities is not None and device.type in info.capabilities.devices
        if info.available and fits:
            return name
        reasons.append(f"{name}: {info.reason or f'does not move {device.type} tensors'}")
    raise BackendUnavailable(f"no backend works for device {device}: {'; '.join(reasons)}")


def _describe(name: str) -> BackendInfo:
    try:
        backend = load(name)
    except BackendUnavailable as error:
        return BackendInfo(name, False, str(error), None)
    reason = backend.unavailable()
    return BackendInfo(name, not reason, reason, backend.capabilities)


def _targets() -> dict[str, str]:
    targets = dict(BUILT_IN)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if targets.get(point.name, point.value) != point.value:
            raise CommUsageError(
                f"backend name {point.name!r} is claimed twice: {targets[point.name]} and "
                f"{point.value}. Uninstall one of the two packages"
            )
        targets[point.name] = point.value
    return targets
