"""The conformance suite as a pytest class, for any backend, in this package or out of it.

    from dcp_comm.testing.suite import BackendConformance

    class TestMine(BackendConformance):
        backend = "mine"
        size = 2

Every rule of `dcp_comm.testing.conformance` becomes a test; the ranks are real processes that are
started once for the class. The backend is found by its entry point. pytest is imported only here.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest

from dcp_comm.testing.conformance import CHECKS
from dcp_comm.testing.pool import RankPool


class BackendConformance:
    """Derive, name a backend, done.

    Attributes:
        backend: Its name in `dcp_comm.list_backends`.
        size: Number of ranks.
        device: ``cpu``, or ``cuda`` for each local rank's GPU (shared, where there are fewer).
        timeout: Seconds that one rule, and the start of the ranks, may take.
    """

    backend: ClassVar[str]
    size: ClassVar[int] = 2
    device: ClassVar[str] = "cpu"
    timeout: ClassVar[float] = 60.0

    @classmethod
    def rank_environment(cls, rank: int) -> Mapping[str, str]:
        """Variables for one rank beside torchrun's, such as NCCL_HOSTID to share a GPU."""
        return {}

    @pytest.fixture(scope="class")
    @classmethod
    def pool(cls) -> Iterator[RankPool]:
        """The class's ranks."""
        with RankPool(
            cls.backend,
            cls.size,
            device=cls.device,
            timeout=cls.timeout,
            environment=cls.rank_environment,
        ) as pool:
            yield pool

    @pytest.mark.parametrize("name", CHECKS)
    def test_rule(self, pool: RankPool, name: str) -> None:
        """One rule on all ranks."""
        pool.run(name)
