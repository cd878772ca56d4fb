"""What a benchmark ran on, so that its numbers can be told from another machine's."""

import os
import platform
import shutil
import subprocess
from typing import Any

import torch
from torch.cuda import nccl

import dcp_comm


def describe(device: torch.device) -> dict[str, Any]:
    """Return names and versions, and the variables that change what NCCL and this library do."""
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine(),
        "devices": torch.cuda.device_count() if cuda else os.cpu_count(),
        "driver": _driver() if cuda else "",
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, nccl.version())) if cuda else "",
        "python": platform.python_version(),
        "dcp_comm": dcp_comm.__version__,
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(("NCCL_", "DCP_COMM_"))
        },
    }


def _driver() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return "unknown: no nvidia-smi"
    asked = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    return next(iter(said.stdout.splitlines()), "unknown: nvidia-smi says nothing")
