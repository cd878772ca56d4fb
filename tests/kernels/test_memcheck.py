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


def errors(*arguments: str) -> list[str]:
    """What memcheck says of each wrong access.

    Answers of the driver are no accesses: bindings look for functions that it has not.
    """
    checked = (TOOL, "--tool", "memcheck", "--report-api-errors", "no", "--print-limit", "20")
    command = (*checked, sys.executable, "-m", "tests.kernels.memcheck")
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout[-4000:] + done.stderr[-2000:]
    told = re.findall(r"ERROR SUMMARY: (\d+) error", done.stdout)
    assert told, said
    assert arguments or done.returncode == 0, said
    found = re.findall(r"^=+ (Invalid .*(?:\n=+ {5}.*)*)", done.stdout, re.MULTILINE)
    assert len(found) == min(int(told[-1]), 20), said
    return found


def test_kernels_touch_no_memory_but_their_own() -> None:
    assert errors() == []


def test_reading_behind_a_tensor_is_seen() -> None:
    assert any("pack_512" in each for each in errors("wrong"))
