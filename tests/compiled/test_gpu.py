"""Compiled regions on CUDA: on torch's current stream, and captured like what they stand for."""

import pytest
import torch

from dcp_comm import compiled
from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from tests.compiled.regions import (
    a_merge,
    collectives,
    merge_inputs,
    merging,
    plain_collectives,
    plain_merging,
)

pytestmark = pytest.mark.gpu


def test_compiled_regions_on_cuda() -> None:
    """One rank: collectives and merges, without a break."""

    def fn(comm: Communicator) -> None:
        region = collectives(comm, compiled.register(comm))
        x = torch.rand(2, 3, device="cuda")
        found = torch.compile(region, fullgraph=True, backend="aot_eager")(x)
        assert all(map(torch.equal, found, plain_collectives(comm, x)))
        name, merge = a_merge(comm)
        built = torch.compile(merging(name), fullgraph=True, backend="aot_eager")
        inputs = merge_inputs(0, "cuda")
        assert all(map(torch.equal, built(*inputs), plain_merging(merge, *inputs)))

    run_ranks(fn, 1, device="cuda")
