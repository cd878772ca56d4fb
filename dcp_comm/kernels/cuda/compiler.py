"""From a CUDA C++ source to a cubin, at run time: NVRTC, through cuda.core.

C++17 for one explicit architecture, without fast-math, and without fusing a multiplication and an
addition that the source keeps apart: the same bits on every architecture. It needs no driver, so
that every kernel can be compiled where there is no GPU.
"""

import importlib
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, TextIO

import torch

from dcp_comm.errors import DcpCommError
from dcp_comm.kernels.cuda import disk
from dcp_comm.kernels.cuda.sources import Source
from dcp_comm.kernels.cuda.unavailable import KernelsUnavailable


def architecture(device: torch.device) -> str:
    """Return the name of a GPU's own architecture, such as ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def cubin(source: Source, arch: str) -> bytes:
    """Return the compiled source, from disk if it was compiled before.

    The key covers the source, its headers, the architecture, the options and NVRTC's version.

    Raises:
        KernelsUnavailable: cuda-core or NVRTC is missing or too old.
        DcpCommError: The compiler refuses the source.
    """
    cuda, options = _cuda(), _options(source, arch)
    try:
        key: bytes = cuda.utils.make_program_cache_key(
            code=source.unit(), code_type="c++", options=options, target_type="cubin"
        )
    except cuda.pathfinder.DynamicLibNotFoundError as error:
        raise _unavailable(f"NVRTC: {error}") from error
    kept = disk.load(key)
    if kept is None:
        kept = compile_source(source, arch)
        disk.store(key, kept)
    return kept


def compile_source(source: Source, arch: str, log: TextIO | None = None) -> bytes:
    """Compile, whatever the cache holds.

    Args:
        source: What to compile.
        arch: The architecture, such as ``sm_90``.
        log: Is told of every kernel's registers, stack, spills and shared memory.

    Raises:
        KernelsUnavailable: cuda-core or NVRTC is missing or too old.
        DcpCommError: The compiler refuses the source; its words are in the message.
    """
    cuda, options = _cuda(), _options(source, arch)
    try:
        program = cuda.core.Program(source.unit(), "c++", options=options)
        return bytes(program.compile("cubin", logs=log).code)
    except cuda.pathfinder.DynamicLibNotFoundError as error:
        raise _unavailable(f"NVRTC: {error}") from error
    except Exception as error:  # whatever cuda.core raises, by names that it keeps to itself
        raise DcpCommError(f"compile: {source.path.name} for {arch}: {error}") from error


def require() -> None:
    """Raise unless sources can be compiled here.

    Raises:
        KernelsUnavailable: cuda-core or NVRTC is missing or too old.
    """
    cuda = _cuda()
    try:
        cuda.pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except cuda.pathfinder.DynamicLibNotFoundError as error:
        raise _unavailable(f"NVRTC: {error}") from error


class _Cuda(NamedTuple):
    core: ModuleType
    utils: ModuleType
    pathfinder: ModuleType


@cache
def _cuda() -> _Cuda:
    """Cuda.core's modules; imported here because only who compiles needs them."""
    try:
        found = _Cuda(
            *map(importlib.import_module, ("cuda.core", "cuda.core.utils", "cuda.pathfinder"))
        )
        found.utils.FileStreamProgramCache  # noqa: B018
    except (ImportError, AttributeError) as error:
        raise _unavailable(f"cuda-core 1.2 or newer: {error}") from error
    return found


def _options(source: Source, arch: str) -> Any:
    return _cuda().core.ProgramOptions(
        name=source.path.name,
        arch=arch,
        std="c++17",
        fma=False,
        no_source_include=True,
        ptxas_options="-v",
    )


def _unavailable(why: str) -> KernelsUnavailable:
    cuda = (torch.version.cuda or "13").partition(".")[0]
    return KernelsUnavailable(f'{why}. pip install "dcp-comm[cuda{cuda}]"')
