"""What is installed, what would be loaded, and what is wrong with it; changes nothing."""

import argparse
import difflib
import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from itertools import combinations

import torch
from torch.cuda import nccl

import dcp_comm
from dcp_comm import footprint, registry
from dcp_comm.cli.libraries import LOADED, Library, Wheel, libraries, wheels
from dcp_comm.cli.table import as_json, size, table
from dcp_comm.errors import BackendUnavailable, CommUsageError
from dcp_comm.settings import Settings

PACKAGES = r"cuda-bindings|cuda-core|cuda-pathfinder|cupy(-cuda\d+x)?|numpy|nvidia-nccl-cu\d+"


@dataclass(frozen=True)
class Finding:
    """Something wrong, and what to do about it."""

    wrong: str
    remedy: str


@dataclass(frozen=True)
class Report:
    """What `examine` saw.

    Attributes:
        versions: By package; only what is installed.
        devices: Devices that tensors can live on.
        nccl: Every libnccl in sight.
        environment: The variables of this library and of NCCL.
        backends: By name, why each cannot work here; empty if it can.
        findings: What is wrong; empty if nothing is.
    """

    versions: dict[str, str]
    devices: tuple[str, ...]
    nccl: tuple[Library, ...]
    environment: dict[str, str]
    backends: dict[str, str]
    findings: tuple[Finding, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the report; 1 if something is wrong."""
    report = examine(os.environ)
    print(as_json(asdict(report)) if arguments.json else "\n\n".join(_sections(report)))
    return 1 if report.findings else 0


def examine(environment: Mapping[str, str]) -> Report:
    """Look at this machine and interpreter; nothing is connected or changed."""
    versions, found, cuda = _versions(), libraries(environment), torch.version.cuda
    variables = {name: environment[name] for name in sorted(environment) if _is_ours(name)}
    backends, clash = _backends()
    findings = (
        *_wheel_findings(wheels(), found),
        *_loading_findings(found, variables.get("DCP_COMM_TWO_NCCL") == "1"),
        *_cuda_findings(versions, int(cuda.split(".")[0]) if cuda else None),
        *_variable_findings(variables),
        *clash,
    )
    return Report(versions, _devices(), found, variables, backends, findings)


def _versions() -> dict[str, str]:
    installed = {each.name: each.version for each in distributions() if each.name}
    bundled = nccl.version() if torch.distributed.is_nccl_available() else ()
    return {
        "python": platform.python_version(),
        "dcp_comm": dcp_comm.__version__,
        "torch": torch.__version__,
        "torch's CUDA": torch.version.cuda or "none",
        "torch's NCCL": ".".join(map(str, bundled)) or "none",
        **{name: installed[name] for name in sorted(installed) if re.fullmatch(PACKAGES, name)},
    }


def _devices() -> tuple[str, ...]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = (torch.cuda.get_device_properties(index) for index in range(count))
    named = (f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {size(gpu.total_memory)}" for gpu in gpus)
    return (
        "cpu",
        *(f"cuda:{index}: {name}" for index, name in enumerate(named)),
        *(_link(one, other) for one, other in combinations(range(count), 2)),
        *((footprint.MEASURED,) if count else ()),
    )


def _link(one: int, other: int) -> str:
    direct = torch.cuda.can_device_access_peer(one, other)
    return f"cuda:{one} - cuda:{other}: {'direct' if direct else 'through the host'}"


def _is_ours(name: str) -> bool:
    return name.startswith(("DCP_COMM_", "NCCL_"))


def _backends() -> tuple[dict[str, str], tuple[Finding, ...]]:
    """Return why each backend cannot work, and what is wrong with all of them."""
    try:
        backends = {info.name: info.reason for info in registry.list_backends()}
    except CommUsageError as error:
        return {}, (Finding(str(error), "Keep one of the packages"),)
    try:
        registry.automatic(torch.device("cpu"))
    except BackendUnavailable as error:
        return backends, (Finding(str(error), "Reinstall torch with its distributed package"),)
    return backends, ()


def _wheel_findings(found: tuple[Wheel, ...], known: tuple[Library, ...]) -> Iterator[Finding]:
    """Wheels that overwrote one another, or whose library is gone or another's."""
    says = {library.path: library.version for library in known}
    sharing = defaultdict(list)
    for wheel in found:
        sharing[wheel.path].append(wheel)
    for path, owners in sharing.items():
        names = " and ".join(f"{wheel.name} {wheel.version}" for wheel in owners)
        actual = says.get(str(path.resolve()), "")
        again = (
            f"Run pip uninstall {' '.join(wheel.name for wheel in owners)}, then pip install the "
            "one for torch's CUDA"
        )
        if len(owners) > 1:
            yield Finding(f"{names} share one file, {path}: the last one installed won", again)
        elif not path.exists():
            yield Finding(f"{names} is installed but {path} is gone", again)
        elif actual and not f"{owners[0].version}.".startswith(f"{actual}."):
            yield Finding(f"{names} is installed but {path} is NCCL {actual}", again)


def _loading_findings(found: tuple[Library, ...], two_are_fine: bool) -> Iterator[Finding]:
    loaded = [library.path for library in found if LOADED in library.sources]
    if len(loaded) > 1 and not two_are_fine:
        wrong = f"this process has loaded {len(loaded)} libnccl: {', '.join(loaded)}"
        yield Finding(wrong, "Let all packages load one: uninstall the wheels of the others")
    for library in found:
        if library.error:
            remedy = f"Reinstall it or take it out of sight ({', '.join(library.sources)})"
            yield Finding(f"{library.path} cannot be loaded: {library.error}", remedy)


def _cuda_findings(versions: dict[str, str], major: int | None) -> Iterator[Finding]:
    """Packages for another CUDA major than torch's; any will do without CUDA in torch."""
    for name, version in versions.items():
        built = re.search(r"-cu(?:da)?(\d+)x?$", name)
        other = built[1] if built else version.split(".")[0] if name == "cuda-bindings" else ""
        if major is not None and other and int(other) != major:
            remedy = f'Run pip uninstall {name}, then pip install "dcp-comm[cuda{major}]"'
            wrong = f"{name} {version} is for CUDA {other}, torch for CUDA {major}"
            yield Finding(wrong, remedy)


def _variable_findings(variables: dict[str, str]) -> Iterator[Finding]:
    known = Settings.names()
    for name in variables:
        if name.startswith("DCP_COMM_") and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            yield Finding(f"{name} means nothing to this library", f"Did you mean {nearest}?")
    try:
        Settings.from_environment(variables)
    except CommUsageError as error:
        yield Finding(str(error), "Correct its value")


def _sections(report: Report) -> Iterator[str]:
    yield table(("package", "version"), list(report.versions.items()), left=2)
    yield "\n".join(("devices", *report.devices))
    rows = [
        (each.path, each.version or each.error, ", ".join(each.sources)) for each in report.nccl
    ]
    yield table(("libnccl", "version", "found by"), rows, 3) if rows else "libnccl\nnone in sight"
    environment = [f"{name}={value}" for name, value in report.environment.items()]
    yield "\n".join(("environment", *(environment or ["no DCP_COMM_* or NCCL_* variable is set"])))
    backends = [(name, reason or "available") for name, reason in report.backends.items()]
    yield table(("backend", ""), backends, left=2)
    for finding in report.findings:
        yield f"WRONG: {finding.wrong}\n       {finding.remedy}"
    yield f"{len(report.findings)} found wrong" if report.findings else "nothing found wrong"
