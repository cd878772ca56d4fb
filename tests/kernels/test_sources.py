"""The sources of the kernels: what is found in them, and the one text that is compiled."""

import re
from pathlib import Path

import pytest

from dcp_comm.kernels.cuda.sources import Source, read_all

SOURCES = Path(__file__).parent / "sources"


def test_kernels_and_headers_are_found() -> None:
    simple = Source.read(SOURCES / "simple.cu")
    assert simple.kernels == ("add_scalar", "row_sum", "prefix_sum")
    assert [name for name, _ in simple.headers] == ["simple.cuh"]


@pytest.mark.parametrize(
    ("declaration", "kernel"),
    [
        ('extern "C" __global__ void k() {', "k"),
        ('extern "C" __global__ void __launch_bounds__(N) k(int* a) {', "k"),
        (
            'extern "C" __global__ void\n__launch_bounds__(f(2), 1)\nk(\n  a*,\n  b\n)',
            "k",
        ),
    ],
)
def test_declarations(declaration: str, kernel: str, tmp_path: Path) -> None:
    (tmp_path / "unit.cu").write_text(declaration)
    assert Source.read(tmp_path / "unit.cu").kernels == (kernel,)


@pytest.mark.parametrize(
    "source", [*read_all(), *read_all(SOURCES)], ids=lambda each: each.path.name
)
def test_every_kernel_is_found_and_nothing_foreign_included(source: Source) -> None:
    texts = [source.text, *(text for _, text in source.headers)]
    assert sum(len(re.findall(r"\b__global__\b", text)) for text in texts) == len(source.kernels)
    assert not any(re.search(r"#\s*include\s*<", text) for text in texts)


def test_names_of_kernels_are_all_different() -> None:
    names = [name for source in read_all() for name in source.kernels]
    assert sorted(set(names)) == sorted(names)


def test_one_text_holds_each_header_once_and_says_where_a_line_is_from(tmp_path: Path) -> None:
    (tmp_path / "inner.cuh").write_text("#pragma once\ninner\n")
    (tmp_path / "outer.cuh").write_text('# pragma once\n#include "inner.cuh"\nouter\n')
    (tmp_path / "unit.cu").write_text('first\n#include "outer.cuh"\n  # include "inner.cuh"\nlast')
    text = Source.read(tmp_path / "unit.cu").unit()
    assert str(tmp_path) not in text
    assert "once" not in text
    file, number, places = "", 0, {}
    for line in text.splitlines():
        if mark := re.fullmatch(r'#line (\d+) "(.*)"', line):
            number, file = int(mark[1]) - 1, mark[2]
        elif line:
            places[line] = f"{file}:{number}"
        number += 1
    assert places == {
        "first": "unit.cu:1",
        "outer": "outer.cuh:3",
        "inner": "inner.cuh:2",
        "last": "unit.cu:4",
    }


def test_a_missing_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "unit.cu").write_text('#include "absent.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"absent\.cuh"):
        Source.read(tmp_path / "unit.cu")
