"""What the sources must not hold: they are read, not run."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import ROOT

SOURCES = [*sorted((ROOT / "dcp_comm").rglob("*.py")), *sorted((ROOT / "backends").glob("*.py"))]
RUNS_WHAT_IT_READS = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "yaml"}
CALLS_THAT_DO = {
    "eval",
    "exec",
    "compile",
    "torch.load",
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
    "os.system",
}

every_source = pytest.mark.parametrize(
    "source", SOURCES, ids=lambda path: str(path.relative_to(ROOT))
)


def nodes(source: Path) -> Iterator[ast.AST]:
    """Every node of a module."""
    return ast.walk(ast.parse(source.read_text()))


def problems(source: Path) -> list[str]:
    """What stands in a module and must not."""
    found = []
    for node in nodes(source):
        if isinstance(node, ast.Assert):
            found.append("assert: gone under python -O")
        elif isinstance(node, ast.Name) and node.id == "__debug__":
            found.append("__debug__: another program under python -O")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            names = {module, *(alias.name for alias in node.names)}
            found += [f"imports {name}" for name in names & RUNS_WHAT_IT_READS]
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS_THAT_DO or called.rpartition(".")[2] in CALLS_THAT_DO - {"compile"}:
                found.append(f"calls {called}")
            found += [f"{called}({k.arg}=True)" for k in node.keywords if is_shell(k)]
    return found


def is_shell(keyword: ast.keyword) -> bool:
    """Whether a call hands a line to a shell."""
    value = keyword.value
    return keyword.arg == "shell" and isinstance(value, ast.Constant) and value.value is True


@every_source
def test_nothing_runs_what_it_reads_and_nothing_hangs_on_assertions(source: Path) -> None:
    assert problems(source) == []


@pytest.mark.parametrize(
    "text",
    [
        "assert x",
        "if __debug__: pass",
        "import pickle",
        "from pickle import loads",
        "import a, marshal",
        "torch.load(f)",
        "dist.all_gather_object(a, b)",
        "eval(x)",
        "subprocess.run(x, shell=True)",
    ],
)
def test_the_search_bites(text: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(text)
    assert problems(source) != []


def listening(source: Path) -> list[str]:
    """Calls that may open a listener."""
    names = {"bind", "create_server", "TCPStore", "listen"}
    return [
        ast.unparse(node)
        for node in nodes(source)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names
    ]


def test_every_listener_is_bound_by_ourselves_to_a_named_address() -> None:
    """Every store is handed a socket: left alone it takes every address."""
    found = {each.relative_to(ROOT).as_posix(): listening(each) for each in SOURCES}
    found = {name: calls for name, calls in found.items() if calls}
    assert set(found) <= {
        "dcp_comm/bootstrap.py",
        "dcp_comm/testing/pool.py",
    }
    for calls in found.values():
        for call in calls:
            assert "TCPStore" not in call or "master_listen_fd=" in call, call
            assert "''" not in call, call
            assert "0.0.0.0" not in call, call
