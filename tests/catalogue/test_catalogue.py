"""The catalogue is whole: every known case is in it, every test it names exists."""

import ast
from functools import cache

import pytest

from tests.catalogue import CASES
from tests.catalogue.table import main, rows_of_table
from tests.processes import ROOT

GAPS = {"C": {8, 26, 32, 34}, "B": {5, 6, 9, 13, 14, 24, 30, 33, 36, 40, 41, 50, 55, 58, 59, 63}}
"""Numbers that were never given, or stand for what only a GPU's tools can show."""
LAST = {"C": 35, "B": 70, "S": 6, "P": 10}


def numbers(letter: str) -> set[str]:
    """Every id of a kind."""
    width = 2 if letter in GAPS else 1
    taken = set(range(1, LAST[letter] + 1)) - GAPS.get(letter, set())
    return {f"{letter}{number:0{width}}" for number in taken}


@cache
def names(file: str) -> frozenset[str]:
    """The tests and classes of tests of a file."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = {node.name for node in tree.body if isinstance(node, kinds)}
    return frozenset(name for name in found if name.startswith(("test_", "Test")))


def test_every_known_case_is_in_it() -> None:
    wanted = {"B44b"}.union(*(numbers(letter) for letter in LAST))
    assert set(CASES) == wanted


@pytest.mark.parametrize("case", CASES)
def test_every_test_it_names_exists(case: str) -> None:
    for test in CASES[case].tests:
        file, _, name = test.partition("::")
        assert name in names(file), test


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_tested_has_a_reason(case: str) -> None:
    assert CASES[case].tests or len(CASES[case].why_not) > 20
    assert CASES[case].what
    assert CASES[case].want


def test_the_table_runs_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["C33", "B52"]) == 0
    printed = capsys.readouterr().out
    assert "C33" in printed
    assert "timeouts of 0" in printed
    assert "passed" in printed


def test_a_failure_shows_in_the_table() -> None:
    (row,) = rows_of_table(["C33"], {"tests/test_deadline.py::test_what_is_no_timeout": ["failed"]})
    assert "1 failed" in row[3]
