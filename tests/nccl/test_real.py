"""The binding against a real libnccl, which answers a good deal without a GPU.

The library is the one in this process or in an installed wheel. Where there is neither, NVIDIA's
wheel is fetched into a folder of the test's own: installing it beside a torch of another CUDA would
replace that torch's library.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dcp_comm.nccl.library import find
from tests.processes import ROOT, with_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.xdist_group("libnccl")]

WHEEL = "nvidia-nccl-cu12==2.28.9"
MEMBER = "nvidia/nccl/lib/libnccl.so.2"


@pytest.fixture(scope="module")
def library() -> Iterator[str]:
    """Path of a real libnccl."""
    found = find()
    if found.origin != "system":
        yield found.path
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "-d", folder]
        try:
            subprocess.run([*command, WHEEL], check=True, capture_output=True, timeout=120)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"{WHEEL} cannot be fetched: {error}")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            yield wheel.extract(MEMBER, folder)


@pytest.fixture(scope="module")
def answers(library: str) -> dict[str, Any]:
    """Everything it was asked, in a process that holds no other and sees no GPU."""
    variables = {"NCCL_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": "", **with_path()}
    command = [sys.executable, "-m", "tests.nccl.real", library]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_it_is_a_libnccl_of_a_known_age(answers: dict[str, Any]) -> None:
    assert (2, 18) <= tuple(answers["version"][:2]) < (3, 0)
    assert len(answers["loaded"]) == 1


def test_every_function_is_bound(answers: dict[str, Any]) -> None:
    symbols = set(answers["symbols"])
    assert {"ncclCommInitRankConfig", "ncclCommSplit", "ncclAllGather"} <= symbols
    assert ("ncclAlltoAll" in symbols) == (answers["version"] >= [2, 28, 3])


def test_ids_are_128_bytes_and_differ(answers: dict[str, Any]) -> None:
    assert len(bytes.fromhex(answers["id"])) == 128
    assert answers["id"] != answers["another id"]


def test_it_listens_on_the_named_interface_only(answers: dict[str, Any]) -> None:
    """127.0.0.1 and ::1 as the kernel spells them."""
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert answers["listeners"]
    assert set(answers["listeners"]) <= loopback


def test_it_has_words_for_its_codes(answers: dict[str, Any]) -> None:
    assert answers["words"][0].startswith("no error")
    assert "invalid argument" in answers["words"][4]
    assert all(answers["words"])


def test_groups_are_counted_and_nulls_survived(answers: dict[str, Any]) -> None:
    """An end too many is an invalid usage; no communicator is an invalid argument."""
    assert answers["group"] == [0, 0, 5]
    assert (answers["null destroy"], answers["null abort"]) == (0, 0)
    assert (answers["null gather"], answers["null async"]) == (4, 4)


def test_without_a_gpu_a_communicator_fails_cleanly(answers: dict[str, Any]) -> None:
    assert answers["join"].startswith("DcpCommError: ncclCommInitRankConfig: NCCL result ")
    assert "made" not in answers["join"]
