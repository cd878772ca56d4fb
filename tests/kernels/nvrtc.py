"""Whether kernels can be compiled here."""

import importlib
from functools import cache


@cache
def missing() -> str:
    """Why NVRTC cannot be used; empty if it can."""
    try:
        importlib.import_module("cuda.core.utils")
        importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib("nvrtc")
    except (ImportError, RuntimeError) as error:
        return f"needs cuda-core and NVRTC: {error}"
    return ""
