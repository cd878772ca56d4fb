"""A whole sharded layer equals dense attention to the best tokens."""

import pytest

from dcp_comm.testing import run_ranks
from tests.attention.cases import WAYS
from tests.attention.layer import worst


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_it_is_dense_attention(size: int, way: str) -> None:
    assert max(run_ranks(worst, size, way)) < 1e-5
