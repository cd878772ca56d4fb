"""Our indexer over the ranks selects what transformers' indexer selects alone."""

import sys

import pytest
import torch

from dcp_comm.testing import run_ranks
from tests.models.selection import Selection, compared, ours

pytest.importorskip("transformers")
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("processes")]


def check(case: Selection, size: int) -> None:
    """Compare all rows that rounding cannot decide; at least 95 % of them."""
    with torch.no_grad():
        rows, wrong = compared(case, run_ranks(ours, size, case))
    sys.stdout.write(f"{case}, {size} ranks: {rows} of {case.tokens} rows compared\n")
    assert rows >= 0.95 * case.tokens
    assert wrong == []


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
def test_the_same_tokens(name: str, size: int) -> None:
    """A prompt longer than K, decode steps, tokens dealt one and two at a time."""
    check(Selection(name, seed=size, steps=(90, *[1] * 8), interleave=size // 2), size)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
def test_the_same_tokens_of_many_models(name: str, seed: int) -> None:
    for size in (2, 3, 4):
        check(Selection(name, seed, (300, *[1] * 30), interleave=1 + seed % 4), size)
