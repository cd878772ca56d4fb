"""The kernels under the sanitizer of CUDA, where it is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.nvrtc import missing

TOOL = "compute-sanitizer"
ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which(TOOL) is None, reason=f"needs {TOOL}"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


def errors(*arguments: str) -> int:
    """How many memcheck counted."""
    command = (TOOL, "--tool", "memcheck", sys.executable, "-m", "tests.kernels.memcheck")
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    assert told, done.stdout[-2000:] + done.stderr[-2000:]
    if not arguments:
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return int(told[-1])


def test_kernels_touch_no_memory_but_their_own() -> None:
    assert errors() == 0


def test_reading_behind_a_tensor_is_seen() -> None:
    assert errors("wrong") > 0
