"""``dcp-comm doctor`` on machines that are made up: wheels, libraries, variables, backends."""

import json
import os
import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dcp_comm import cli, registry
from dcp_comm.cli import doctor, libraries
from dcp_comm.errors import BackendUnavailable, CommUsageError
from dcp_comm.nccl import library
from dcp_comm.settings import Settings

ROOT = Path(__file__).parents[2]
LIBRARY = Path("nvidia/nccl/lib/libnccl.so.2")


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable is set, and no libnccl of the machine is in sight."""
    for name in os.environ:
        if name.startswith(("DCP_COMM_", "NCCL_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(cli, "COMMANDS", ("doctor",))
    monkeypatch.setattr(libraries, "loaded", tuple)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(libraries, "distributions", list)
    monkeypatch.setattr(doctor, "distributions", list)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, the only one."""
    folder = tmp_path / "site"
    folder.mkdir()
    for module in (libraries, doctor):
        monkeypatch.setattr(module, "distributions", lambda: distributions(path=[str(folder)]))
    return folder


@pytest.fixture(scope="session")
def compiler() -> str:
    """A C compiler."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("needs a C compiler")
    return found


@pytest.fixture(scope="session")
def nccl(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> Path:
    """A shared library that says it is NCCL 2.28.9."""
    source = "int ncclGetVersion(int *version) { *version = 22809; return 0; }"
    return compiled(compiler, source, tmp_path_factory.mktemp("nccl") / "libnccl.so.2")


def compiled(compiler: str, source: str, library: Path) -> Path:
    """Compile C to a shared library."""
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(command, input=source, text=True, check=True)
    return library


def install(site: Path, name: str, version: str, library: Path | None = None) -> None:
    """Install a package's metadata, and the library that it brings."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if library is not None:
        (site / LIBRARY).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, site / LIBRARY)


def findings(**environment: str) -> list[str]:
    """What is found wrong, with its remedy."""
    return [f"{each.wrong} | {each.remedy}" for each in doctor.examine(environment).findings]


def test_nothing_is_wrong_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert f"torch {torch.__version__}" in " ".join(printed.split())
    assert "none in sight" in printed
    assert "no DCP_COMM_* or NCCL_* variable is set" in printed
    assert "nothing found wrong" in printed


def test_json_says_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("DCP_COMM_CHEK", "1")
    assert cli.main(["doctor", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["versions"]["torch"] == torch.__version__
    assert printed["devices"][0] == "cpu"
    assert printed["backends"]["torch"] == ""
    assert printed["environment"] == {"DCP_COMM_CHEK": "1", "NCCL_DEBUG": "INFO"}
    assert [each["remedy"] for each in printed["findings"]] == ["Did you mean DCP_COMM_CHECK?"]


def test_what_is_wrong_is_printed_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DCP_COMM_RANGE", "1")
    assert cli.main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "WRONG: DCP_COMM_RANGE means nothing to this library" in printed
    assert "Did you mean DCP_COMM_RANGES?" in printed
    assert "1 found wrong" in printed


def test_a_value_that_means_nothing_is_wrong() -> None:
    (found,) = findings(DCP_COMM_CHECK="2")
    assert "DCP_COMM_CHECK: got '2', need one of 0, merge, all" in found
    assert findings(DCP_COMM_CHECK="merge", DCP_COMM_RANGES="1", NCCL_ANYTHING="x") == []


def test_every_variable_that_the_code_names_is_known() -> None:
    sources = [*(ROOT / "dcp_comm").rglob("*.py"), *(ROOT / "backends").glob("*.py")]
    named = {name for path in sources for name in re.findall(r"DCP_COMM_[A-Z_]+", path.read_text())}
    assert {"DCP_COMM_CHECK", "DCP_COMM_RANGES"} <= set(Settings.names())
    assert named == set(Settings.names())


def test_a_wheel_is_seen_and_asked_without_loading_it(site: Path, nccl: Path) -> None:
    install(site, "nvidia-nccl-cu13", "2.28.9", nccl)
    report = doctor.examine({})
    assert report.findings == ()
    assert report.nccl == (
        libraries.Library(str(site / LIBRARY), ("nvidia-nccl-cu13",), "2.28.9", ""),
    )
    assert report.versions["nvidia-nccl-cu13"] == "2.28.9"
    assert str(site) not in Path("/proc/self/maps").read_text()


def test_two_wheels_in_one_folder_are_wrong(site: Path, nccl: Path) -> None:
    install(site, "nvidia-nccl-cu12", "2.27.3", nccl)
    install(site, "nvidia-nccl-cu13", "2.28.9", nccl)
    (found,) = findings()
    assert "nvidia-nccl-cu12 2.27.3 and nvidia-nccl-cu13 2.28.9 share one file" in found
    assert "pip uninstall nvidia-nccl-cu12 nvidia-nccl-cu13" in found


def test_a_wheel_whose_file_is_gone_is_wrong(site: Path) -> None:
    install(site, "nvidia-nccl-cu12", "2.27.3")
    (found,) = findings()
    assert found.startswith(f"nvidia-nccl-cu12 2.27.3 is installed but {site / LIBRARY} is gone")


def test_a_wheel_that_another_overwrote_is_wrong(site: Path, nccl: Path) -> None:
    install(site, "nvidia-nccl-cu12", "2.27.3", nccl)
    (found,) = findings()
    assert f"nvidia-nccl-cu12 2.27.3 is installed but {site / LIBRARY} is NCCL 2.28.9" in found


def test_a_post_release_is_the_same_nccl(site: Path, nccl: Path) -> None:
    install(site, "nvidia-nccl-cu12", "2.28.9.post1", nccl)
    assert findings() == []


@pytest.mark.parametrize(
    ("name", "version"),
    [("nvidia-nccl-cu12", "2.28.9"), ("cupy-cuda12x", "14.0.1"), ("cuda-bindings", "12.9.4")],
)
def test_packages_of_another_cuda_than_torch_are_wrong(
    site: Path, nccl: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str
) -> None:
    install(site, name, version, nccl)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    (found,) = findings()
    assert f"{name} {version} is for CUDA 12, torch for CUDA 13" in found
    assert f'pip uninstall {name}, then pip install "dcp-comm[cuda13]"' in found
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert findings() == []


def test_other_packages_have_no_cuda(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    install(site, "numpy", "2.4.6")
    install(site, "cuda-core", "1.2.2")
    report = doctor.examine({})
    assert report.findings == ()
    assert (report.versions["numpy"], report.versions["cuda-core"]) == ("2.4.6", "1.2.2")
    assert report.versions["torch's CUDA"] == "13.0"


def test_every_place_is_searched_and_one_file_is_one_library(
    tmp_path: Path, site: Path, nccl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "nvidia-nccl-cu13", "2.28.9", nccl)
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(f"#!/bin/sh\necho '\tlibnccl.so.2 (libc6,x86-64) => {nccl}'\n")
    ldconfig.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(ldconfig))
    monkeypatch.setattr(libraries, "loaded", lambda: (str(site / LIBRARY),))
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "libnccl.so").symlink_to(site / LIBRARY)
    found = libraries.libraries({"LD_LIBRARY_PATH": f":{folder}", library.VARIABLE: str(nccl)})
    assert {library.path: library.sources for library in found} == {
        str(nccl): (library.VARIABLE, "ldconfig"),
        str(site / LIBRARY): (libraries.LOADED, "nvidia-nccl-cu13", "LD_LIBRARY_PATH"),
    }
    assert {library.version for library in found} == {"2.28.9"}


def test_two_loaded_libraries_are_wrong_unless_allowed(
    site: Path, nccl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, "nvidia-nccl-cu13", "2.28.9", nccl)
    monkeypatch.setattr(libraries, "loaded", lambda: (str(nccl), str(site / LIBRARY)))
    (found,) = findings()
    assert f"this process has loaded 2 libnccl: {nccl}, {site / LIBRARY}" in found
    assert findings(DCP_COMM_TWO_NCCL="1") == []


def test_what_cannot_be_loaded_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "libnccl.so.2").write_text("no library")
    (found,) = findings(LD_LIBRARY_PATH=str(tmp_path))
    assert f"{tmp_path}/libnccl.so.2 cannot be loaded: " in found
    assert "(LD_LIBRARY_PATH)" in found


def test_what_is_not_nccl_is_wrong(tmp_path: Path, compiler: str) -> None:
    compiled(compiler, "", tmp_path / "libnccl.so.2")
    (found,) = findings(LD_LIBRARY_PATH=str(tmp_path))
    assert "undefined symbol: ncclGetVersion" in found


def test_a_named_library_that_others_may_write_is_not_opened(tmp_path: Path, nccl: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    shutil.copy(nccl, library)
    library.chmod(0o777)
    (found,) = findings(DCP_COMM_NCCL_LIBRARY=str(library))
    assert "which others may write" in found


def test_a_library_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 30)

    (tmp_path / "libnccl.so.2").touch()
    monkeypatch.setattr(subprocess, "run", hang)
    (found,) = findings(LD_LIBRARY_PATH=str(tmp_path))
    assert "timed out after 30 seconds" in found


def test_gpus_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=150 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda one, other: True)
    *devices, memory = doctor.examine({}).devices
    assert devices == [
        "cpu",
        "cuda:0: NVIDIA H200, sm_90, 150 GiB",
        "cuda:1: NVIDIA H200, sm_90, 150 GiB",
        "cuda:0 - cuda:1: direct",
    ]
    assert "communicator" in memory


def test_a_backend_that_cannot_work_says_why_and_is_not_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry.BUILT_IN, "other", "dcp_comm.backends.absent:Backend")
    assert cli.main(["doctor"]) == 0
    assert "No module named 'dcp_comm.backends.absent'" in capsys.readouterr().out


def test_no_backend_for_the_cpu_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(device: torch.device) -> str:
        raise BackendUnavailable(f"no backend works for device {device}")

    monkeypatch.setattr(registry, "automatic", none)
    (found,) = findings()
    assert found.startswith("no backend works for device cpu")


def test_a_backend_name_claimed_twice_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def clash() -> None:
        raise CommUsageError("backend name 'fake' is claimed twice")

    monkeypatch.setattr(registry, "list_backends", clash)
    report = doctor.examine({})
    assert report.backends == {}
    assert [each.wrong for each in report.findings] == ["backend name 'fake' is claimed twice"]
