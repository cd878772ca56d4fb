"""The rules over the fake backend: threads of this process."""

import pytest

from dcp_comm.testing import run_ranks
from dcp_comm.testing.conformance import CHECKS


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_rule(name: str, size: int) -> None:
    assert run_ranks(CHECKS[name], size) == [None] * size
