"""Every kernel, run on the CPU in several orders of its threads, does what torch operations do."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.kernels.both import SCORES, Both, Point
from tests.kernels.checks import CHECKS
from tests.kernels.emulated import emulator_for, needs_compiler

pytestmark = needs_compiler

SIZES = (1, 2, 3, 4, 5, 8)
INTERLEAVES = (1, 3, 16, 64)
POISONS = (0xFF, 0xA5)
ORDERS = (0, 1, 7)  # of threads: in turn, the latest first, at random

Check = Callable[[Both], None]


def points(ks: Sequence[int], first: int = 0) -> Iterator[Point]:
    """Every kind of scores with every K; what else there is, in turns of different lengths."""
    for at, (kind, k) in enumerate(itertools.product(SCORES, ks), first):
        yield Point(
            kind,
            k,
            SIZES[(at // len(ks) + at % len(ks)) % len(SIZES)],
            interleave=INTERLEAVES[at // 3 % len(INTERLEAVES)],
            by_position=bool(at % 2),
            poison=POISONS[at // 2 % len(POISONS)],
            seed=at,
        )


QUICK = list(points((8, 37, 300, 512)))
WIDE = [each for first in range(3) for each in points((513, 1024, 2048, 3001, 4096), 1000 * first)]


def test_the_points_meet_every_value_of_every_dimension() -> None:
    for each in (QUICK, WIDE):
        assert {point.size for point in each} == set(SIZES)
        assert {point.interleave for point in each} == set(INTERLEAVES)
        met = {(point.by_position, point.poison, point.seed % 3) for point in each}
        assert len(met) == 2 * len(POISONS) * len(ORDERS)


@pytest.mark.parametrize("point", QUICK, ids=str)
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_do_what_torch_does(check: Check, point: Point) -> None:
    check(Both(emulator_for(point.k, ORDERS[point.seed % len(ORDERS)]), point))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("check", CHECKS)
def test_nothing_in_them_is_undefined(check: Check, order: int) -> None:
    """The same points, in every order, where an index out of bounds or an overflow is an error."""
    for point in QUICK:
        check(Both(emulator_for(point.k, order, sanitize=True), point))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("k", sorted({point.k for point in WIDE}))
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_of_every_capacity_do_what_torch_does(check: Check, k: int) -> None:
    for point in WIDE:
        if point.k == k:
            check(Both(emulator_for(k, ORDERS[point.seed % len(ORDERS)]), point))
