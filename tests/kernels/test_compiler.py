"""NVRTC compiles every kernel, without a GPU; what it made is kept and found again."""

import importlib
import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dcp_comm.errors import BackendUnavailable, DcpCommError
from dcp_comm.kernels.cuda import compiler
from dcp_comm.kernels.cuda.sources import Source, read_all
from tests.kernels.nvrtc import missing

SOURCES = Path(__file__).parent / "sources"
ROOT = Path(__file__).parents[2]

needs_nvrtc = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("DCP_COMM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A small source with a header, to be changed."""
    (tmp_path / "unit.cuh").write_text("constexpr long long step = 1;\n")
    text = '#include "unit.cuh"\nextern "C" __global__ void k(long long* a) { *a += step; }\n'
    (tmp_path / "unit.cu").write_text(text)
    return tmp_path / "unit.cu"


def resources(log: str) -> dict[str, tuple[int, int]]:
    """Registers and bytes spilled, by kernel, from what ptxas says."""
    found = re.findall(
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        log,
        re.DOTALL,
    )
    return {name: (int(used), int(out) + int(back)) for name, out, back, used in found}


@needs_nvrtc
@pytest.mark.parametrize(
    "arch",
    [
        pytest.param("sm_80", marks=pytest.mark.slow),
        "sm_90",
        pytest.param("sm_100", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "source", [*read_all(), *read_all(SOURCES)], ids=lambda each: each.path.stem
)
def test_every_kernel_compiles(source: Source, arch: str) -> None:
    log = io.StringIO()
    image = compiler.compile_source(source, arch, log)
    assert image.startswith(b"\x7fELF")
    assert all(name.encode() in image for name in source.kernels)
    used = resources(log.getvalue())
    print(f"{source.path.name} {arch} (registers, bytes spilled): {used}")  # noqa: T201
    assert set(used) == set(source.kernels)


@needs_nvrtc
def test_a_source_is_compiled_once(unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiler.cubin(Source.read(unit), "sm_90")
    monkeypatch.setattr(compiler, "compile_source", refuse)
    assert compiler.cubin(Source.read(unit), "sm_90") == made


def refuse(source: Source, arch: str) -> bytes:
    raise AssertionError(f"compiled {source.path.name} for {arch} again")


@needs_nvrtc
@pytest.mark.parametrize(
    "change",
    [
        lambda unit: unit.write_text(unit.read_text().replace("+=", "-=")),
        lambda unit: unit.with_suffix(".cuh").write_text("constexpr long long step = 2;\n"),
    ],
    ids=["source", "header"],
)
def test_a_change_is_compiled(
    unit: Path, change: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiler.cubin(Source.read(unit), "sm_90")
    change(unit)
    assert compiler.cubin(Source.read(unit), "sm_90") != made
    monkeypatch.setattr(compiler, "compile_source", refuse)
    with pytest.raises(AssertionError, match="for sm_80 again"):
        compiler.cubin(Source.read(unit), "sm_80")


@needs_nvrtc
def test_a_damaged_cache_costs_a_compilation(unit: Path, cache: Path) -> None:
    made = compiler.cubin(Source.read(unit), "sm_90")
    files = [path for path in (cache / "entries").rglob("*") if path.is_file()]
    assert len(files) == 1
    files[0].write_bytes(b"damaged")
    assert compiler.cubin(Source.read(unit), "sm_90") == made
    assert files[0].read_bytes() != b"damaged"


@needs_nvrtc
def test_what_the_compiler_says_is_in_the_error(unit: Path) -> None:
    unit.with_suffix(".cuh").write_text("\n\nconstexpr long long step = nonsense;\n")
    words = r'compile: unit\.cu for sm_90: (?s:.*)unit\.cuh\(3\): error: .*"nonsense"'
    with pytest.raises(DcpCommError, match=words):
        compiler.cubin(Source.read(unit), "sm_90")
    unit.with_suffix(".cuh").write_text("constexpr long long step = 1;\n")
    with pytest.raises(DcpCommError, match=r"compile: unit\.cu for sm_1: "):
        compiler.cubin(Source.read(unit), "sm_1")


@needs_nvrtc
def test_headers_of_the_working_folder_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stray.h").write_text("constexpr int stray = 1;\n")
    (tmp_path / "unit.cu").write_text("#include <stray.h>\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DcpCommError, match=r"stray\.h"):
        compiler.cubin(Source.read(tmp_path / "unit.cu"), "sm_90")


@pytest.mark.parametrize(
    ("cuda", "extra"), [("12.9", "cuda12"), ("13.0", "cuda13"), (None, "cuda13")]
)
@pytest.mark.parametrize("found", ["nothing", "too old", "no NVRTC"])
def test_what_to_install_is_said(
    unit: Path, found: str, cuda: str | None, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def modules(name: str) -> ModuleType:
        if found == "nothing":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return stand_in(name, old=found == "too old")

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(importlib, "import_module", modules)
    compiler._cuda.cache_clear()
    need = "NVRTC: no libnvrtc" if found == "no NVRTC" else "cuda-core 1.2 or newer"
    words = rf'CUDA kernels: need {need}.* pip install "dcp-comm\[{extra}\]"$'
    try:
        with pytest.raises(BackendUnavailable, match=words):
            compiler.cubin(Source.read(unit), "sm_90")
        with pytest.raises(BackendUnavailable, match=words):
            compiler.compile_source(Source.read(unit), "sm_90")
    finally:
        compiler._cuda.cache_clear()


def stand_in(name: str, *, old: bool) -> ModuleType:
    """A cuda.core that finds no NVRTC, or is too old to keep what it compiles."""

    class NotFoundError(RuntimeError):
        pass

    def not_found(*args: object, **options: object) -> None:
        raise module.DynamicLibNotFoundError("no libnvrtc")

    module = _modules.setdefault(name, ModuleType(name))
    shared = _modules.setdefault("cuda.pathfinder", ModuleType("cuda.pathfinder"))
    vars(shared).setdefault("DynamicLibNotFoundError", NotFoundError)
    module.DynamicLibNotFoundError = shared.DynamicLibNotFoundError  # type: ignore[attr-defined]
    vars(module).update(ProgramOptions=dict, Program=not_found, make_program_cache_key=not_found)
    vars(module).pop("FileStreamProgramCache", None)
    if not old:
        vars(module).update(FileStreamProgramCache=object)
    return module


_modules: dict[str, ModuleType] = {}


def test_importing_the_launcher_imports_no_compiler() -> None:
    code = "import sys, dcp_comm.kernels.cuda.launcher; sys.exit('cuda.core' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
