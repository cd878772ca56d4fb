"""Any shape within the limits, after the lock: nothing grows, nothing fails, the oracle agrees."""

import pytest

from dcp_comm.indexer import decode, pages, path, scoring
from tests.indexer.cases import Step, check
from tests.indexer.draws import random_case

SIZES = (1, 2, 3, 4, 8)
SEEDS = range(8)
STEPS = 17


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    """Let small shapes cross the borders of every block."""
    patch.setattr(path, "CHUNK_ROWS", 7)
    patch.setattr(decode, "TILE_TOKENS", 5)
    patch.setattr(pages, "BLOCK_TOKENS", 3)
    patch.setattr(scoring, "TILE_ELEMENTS", 11)


def test_the_shapes_are_at_least_500_and_differ() -> None:
    """Counted, prefill beside decode, with padding, empty calls, prefixes and speculative rows."""
    cases = [random_case(size, seed, STEPS) for size in SIZES for seed in SEEDS]
    steps = [(case.limits, step) for case in cases for step in case.steps]
    shapes = {(limits, step.path, step.lengths, step.counts) for limits, step in steps}
    assert len(steps) >= 500
    assert len(shapes) > 500
    kinds = [kinds_of(step) for _, step in steps]
    assert all(sum(kind in found for found in kinds) > 20 for kind in KINDS)


KINDS = ("no rows", "padding request", "prefix", "rows before token 0", "speculative", "packed")


def kinds_of(step: Step) -> set[str]:
    """Which of `KINDS` a step has."""
    pairs = [each for each in zip(step.lengths, step.counts, strict=True) if each[1]]
    found = {"prefix"} if any(length > rows for length, rows in pairs) else set()
    found |= {"rows before token 0"} if any(rows > length > 0 for length, rows in pairs) else set()
    found |= {"padding request"} if any(length < 0 for length, _ in pairs) else set()
    if step.path == "decode" and any(rows > 1 for _, rows in pairs):
        found.add("speculative")
    if step.path == "prefill" and len(pairs) > 1:
        found.add("packed")
    return found if pairs else {"no rows"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", SIZES)
def test_any_shape(size: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to the oracle, each on every rank."""
    if seed % 2:
        small_blocks(monkeypatch)
    check(random_case(size, seed, STEPS))
