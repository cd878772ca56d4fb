"""The examples run as they stand, and the example backend is installed, found and conforms."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dcp_comm.testing.conformance import CHECKS
from tests.processes import ROOT, with_path

EXAMPLES = ROOT / "examples"
FILES = sorted(EXAMPLES.rglob("*.py"))

LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

processes = pytest.mark.xdist_group("processes")


def python(*arguments: str, folder: Path = ROOT, path: tuple[Path, ...] = ()) -> str:
    """Run an interpreter that imports from ``path`` first; what it printed."""
    kept = {name: value for name, value in os.environ.items() if "TORCHELASTIC" not in name}
    command = [sys.executable, *arguments]
    result = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **with_path(*path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example backend, installed by pip without a network, from a copy of its folder."""
    source = tmp_path_factory.mktemp("source") / "my_backend"
    shutil.copytree(EXAMPLES / "my_backend", source)
    target = tmp_path_factory.mktemp("site")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    python("-m", "pip", "install", *options, "--target", str(target), str(source))
    return target


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_fits_on_a_screen(file: Path) -> None:
    assert len(file.read_text().splitlines()) < 60


def test_reserve_then_lock_serves_and_refuses() -> None:
    head, owner, *served, refused = python("examples/reserve_then_lock.py").splitlines()
    assert head == "workspace on cpu: 458,752 bytes, 1 slot(s), locked"
    assert owner.split() == ["top-k", "458,752"]
    assert [line.split(" rows: ")[1] for line in served] == [
        f"{64 * rows:,} winners" for rows in (1, 256, 3)
    ]
    assert refused.startswith("refused: Workspace.take: scores, ids, more: got need of 1179648")


def test_a_sharded_step_attends_like_an_unsharded_one() -> None:
    printed = python("examples/sparse_attention_step.py").splitlines()
    differences = [float(line.split()[-4]) for line in printed]
    assert len(differences) == 4
    assert max(differences) < 1e-5


@processes
def test_an_engine_changes_over() -> None:
    *_, same, certified = python(*LAUNCHER, "examples/engine_drop_in.py").splitlines()
    assert same == "200 of 200 rows the same, in order"
    assert certified == "200 certified exact, whatever the local top-K does on ties"


@processes
def test_the_first_all_gather() -> None:
    printed = python(*LAUNCHER, "examples/first_all_gather.py").splitlines()
    assert printed[-2].startswith("Communicator('world', rank 0 of 2, backend torch, cpu")
    assert printed[-1] == "[[0, 1, 2], [10, 11, 12]]"


def test_the_backend_is_found_by_its_entry_point(installed: Path) -> None:
    code = "import dcp_comm; print(dcp_comm.list_backends()[-1])"
    printed = python("-c", code, path=(installed,)).splitlines()[-1]
    assert printed.startswith("BackendInfo(name='mine', available=True, reason='',")
    assert "devices=('cpu',)" in printed


@processes
@pytest.mark.timeout(240)
def test_the_backend_keeps_every_rule(installed: Path, tmp_path: Path) -> None:
    test = EXAMPLES / "my_backend" / "test_my_backend.py"
    shutil.copy(test, tmp_path)
    options = ("-p", "no:cacheprovider", "--import-mode=importlib", "-q")
    printed = python("-m", "pytest", *options, test.name, folder=tmp_path, path=(installed,))
    assert f"{len(CHECKS)} passed" in printed


def test_the_conformance_test_takes_five_lines() -> None:
    source = (EXAMPLES / "my_backend" / "test_my_backend.py").read_text()
    code = [line for line in source.splitlines() if line.strip() and '"""' not in line]
    assert len(code) <= 5
