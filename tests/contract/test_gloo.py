"""The rules over gloo: real processes, one store, one class a kind and size."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dcp_comm.testing.suite import BackendConformance
from tests.processes import with_path

pytestmark = pytest.mark.xdist_group("processes")

PLUGINS = Path(__file__).parent / "plugins"


class TestTwoRanks(BackendConformance):
    backend = "torch"
    size = 2


class TestFourRanks(BackendConformance):
    backend = "torch"
    size = 4


class TestOldNames(BackendConformance):
    """What torch 2.10 to 2.12 offer: the old names alone, over real data."""

    backend = "old-torch"
    size = 3

    @classmethod
    def rank_environment(cls, rank: int) -> Mapping[str, str]:
        return with_path(PLUGINS)
