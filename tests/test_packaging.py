"""The package as it is shipped: what is in it, under which names, and what importing it costs."""

import contextlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

import dcp_comm

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())

in_checkout = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git checkout")


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter in the root of the project."""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def names(requirements: list[str]) -> set[str]:
    """The projects that requirements ask for."""
    return {re.split(r"[^\w.-]", requirement)[0] for requirement in requirements}


def test_every_package_with_modules_is_listed() -> None:
    found = {"dcp_comm.backends"}
    for marker in (ROOT / "dcp_comm").rglob("__init__.py"):
        found.add(".".join(marker.parent.relative_to(ROOT).parts))
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(found)
    assert not list((ROOT / "backends").glob("*/__init__.py"))


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {module.parent for module in (ROOT / "dcp_comm").rglob("*.py")} | {ROOT / "backends"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_backends_refuse_a_second_name() -> None:
    result = python("import backends")
    assert result.returncode == 1
    assert "ImportError: import dcp_comm.backends, not backends" in result.stderr


@in_checkout
def test_backends_are_a_link_in_git() -> None:
    command = ["git", "ls-files", "--stage", "dcp_comm/backends"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    mode, blob, _ = listed.split(maxsplit=2)
    command = ["git", "cat-file", "blob", blob]
    target = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (mode, target) == ("120000", "../backends")


def test_the_version_is_one_in_source_changelog_and_metadata() -> None:
    newest = re.search(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == dcp_comm.__version__
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        assert importlib.metadata.version("dcp-comm") == dcp_comm.__version__


def test_the_version_can_be_read_without_importing() -> None:
    source = (ROOT / "dcp_comm" / "__init__.py").read_text()
    assert re.search(rf'^__version__ = "{re.escape(dcp_comm.__version__)}"$', source, re.MULTILINE)


def test_torch_is_the_only_dependency() -> None:
    assert PROJECT["project"]["dependencies"] == ["torch>=2.10"]


def test_every_tool_that_runs_here_is_pinned() -> None:
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    extras = PROJECT["project"]["optional-dependencies"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert names(pins) == names([*extras["test"], *extras["dev"], "torch"])


def test_types_are_shipped() -> None:
    assert (ROOT / "dcp_comm" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["dcp_comm"]


def test_kernel_sources_are_shipped(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "dcp_comm", project / "dcp_comm", symlinks=True)
    shutil.copytree(ROOT / "backends", project / "backends")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, project)
    kernels = project / "dcp_comm" / "kernels" / "cuda"
    for name in ("added.cu", "added.cuh"):
        (kernels / name).touch()
    build = "from setuptools.build_meta import build_wheel; build_wheel('.')"
    subprocess.run([sys.executable, "-c", build], cwd=project, capture_output=True, check=True)
    (wheel,) = project.glob("*.whl")
    shipped = {Path(name).name for name in zipfile.ZipFile(wheel).namelist() if ".cu" in name}
    assert shipped == {path.name for path in kernels.glob("*.cu*")}


def test_importing_brings_nothing_but_torch_and_leaves_no_trace() -> None:
    result = python(
        """
import json, os, sys, threading, torch
before, environment = set(sys.modules), dict(os.environ)
import dcp_comm
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps({
    "new": sorted(new - set(sys.stdlib_module_names)),
    "threads": threading.active_count(),
    "environment": environment == dict(os.environ),
    "backends": [name for name in sys.modules if name.startswith("dcp_comm.backends.")],
}))
"""
    )
    assert result.stderr == ""
    seen = json.loads(result.stdout)
    assert set(seen["new"]) <= {"dcp_comm", "torch"}
    assert (seen["threads"], seen["environment"], seen["backends"]) == (1, True, [])


def test_public_names_fit_on_one_screen() -> None:
    assert sorted(set(dcp_comm.__all__)) == sorted(dcp_comm.__all__)
    assert len(dcp_comm.__all__) <= 20
    assert all(hasattr(dcp_comm, name) for name in dcp_comm.__all__)
