"""Every strategy over gloo, in real processes: the same bits as over the fake backend."""

import sys

import pytest

from tests.processes import Process, free_port, launcher_variables
from tests.topk.cases import check_merge
from tests.topk.gloo_ranks import cases, digest
from tests.topk.variants import check_variants, variants

pytestmark = pytest.mark.xdist_group("processes")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_strategies_over_gloo_equal_the_oracle(size: int) -> None:
    """What each process got for each case and variant is what the checked fake run got."""
    port, command = free_port(), [sys.executable, "-m", "tests.topk.gloo_ranks"]
    ranks = [Process(command, launcher_variables(rank, size, port)) for rank in range(size)]
    try:
        for case in cases(size):
            assert check_variants(case) > 0
            expected = [digest(each) for each in check_merge(case)]
            chosen = list(variants(case.output, case.k))
            for rank, process in enumerate(ranks):
                assert process.next()["digests"] == [expected[rank]] * len(chosen)
        assert [process.wait() for process in ranks] == [0] * size
    finally:
        for process in ranks:
            process.end()
