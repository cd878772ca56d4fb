"""The rules over the fake backend on CUDA: ranks as threads that share a GPU."""

import pytest

from dcp_comm.testing import run_ranks
from dcp_comm.testing.conformance import CHECKS

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", CHECKS)
def test_rule(name: str, size: int) -> None:
    assert run_ranks(CHECKS[name], size, device="cuda") == [None] * size
