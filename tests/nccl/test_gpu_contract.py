"""The contract suite over NCCL, ranks sharing one GPU."""

from collections.abc import Mapping
from importlib.util import find_spec

import pytest

from dcp_comm.testing.suite import BackendConformance
from tests.nccl.on_gpu import shared_gpu

pytestmark = pytest.mark.gpu

needs_cupy = pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")


class OnGpu(BackendConformance):
    """Ranks as processes on the first GPU."""

    device = "cuda"
    timeout = 60.0

    @classmethod
    def rank_environment(cls, rank: int) -> Mapping[str, str]:
        return shared_gpu(rank)


class TestPyNcclAlone(OnGpu):
    backend = "pynccl"
    size = 1


class TestPyNcclOfTwo(OnGpu):
    backend = "pynccl"


class TestPyNcclOfFour(OnGpu):
    backend = "pynccl"
    size = 4


@needs_cupy
class TestCupyAlone(OnGpu):
    backend = "cupy"
    size = 1


@needs_cupy
class TestCupyOfTwo(OnGpu):
    backend = "cupy"


@needs_cupy
class TestCupyOfFour(OnGpu):
    backend = "cupy"
    size = 4


class TestTorchAlone(OnGpu):
    backend = "torch"
    size = 1


class TestTorchOfTwo(OnGpu):
    backend = "torch"


class TestTorchOfFour(OnGpu):
    backend = "torch"
    size = 4
