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


def memcheck(*arguments: str) -> tuple[int, str]:
    """How many wrong accesses it counted, and what it says of them.

    Answers of the driver are no accesses: bindings ask for functions that it has not.
    """
    checked = (TOOL, "--tool", "memcheck", "--report-api-errors", "no", "--print-limit", "20")
    done = subprocess.run(
        [*checked, sys.executable, "-m", "tests.kernels.memcheck", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    told = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    said = done.stdout[:4000] + done.stderr[-2000:]
    assert told, said
    assert arguments or done.returncode == 0, said
    return int(told[-1]), said


def test_kernels_touch_no_memory_but_their_own() -> None:
    count, said = memcheck()
    assert count == 0, said


def test_reading_behind_a_tensor_is_seen() -> None:
    count, said = memcheck("wrong")
    assert count > 0, said
    assert "pack_512" in said
