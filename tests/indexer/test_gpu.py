"""The same steps on CUDA, on ranks that share the GPU."""

from dataclasses import replace

import pytest

from tests.indexer.cases import check
from tests.indexer.draws import random_case
from tests.indexer.test_mutations import CASE
from tests.indexer.test_random import SEEDS, SIZES, small_blocks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", SIZES)
def test_any_shape_on_cuda(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps of every seed, blocks as they are and small."""
    for seed in SEEDS:
        check(replace(random_case(size, seed, steps=4), device="cuda"))
    small_blocks(monkeypatch)
    check(replace(random_case(size, 0, steps=4), device="cuda"))


def test_a_mixed_step_on_cuda() -> None:
    """Packed, speculative, with padding, over several logits chunks and exchanges."""
    check(replace(CASE, device="cuda"))
