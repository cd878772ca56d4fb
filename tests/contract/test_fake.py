"""The rules over the fake backend: threads of this process."""

import weakref

import pytest
import torch

from dcp_comm import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.testing.conformance import CHECKS


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_rule(name: str, size: int) -> None:
    assert run_ranks(CHECKS[name], size) == [None] * size


def test_a_call_keeps_no_tensor() -> None:
    """A workspace that is taken again would find it held."""

    def fn(comm: Communicator) -> list[bool]:
        output, given = torch.zeros(comm.size, 3), torch.ones(3)
        seen = [weakref.ref(output), weakref.ref(given)]
        comm.all_gather_into(output, given)
        del output, given
        return [each() is None for each in seen]

    assert run_ranks(fn, 3) == [[True, True]] * 3
