"""Whole models on one GPU, sharded over two ranks through NCCL."""

import pytest

from dcp_comm.testing.models import MODELS, Comparison
from tests.attention.on_gpu import sharing
from tests.launches import reports
from tests.models.cases import check

# Of older ones the small random models are others, and full of ties.
pytest.importorskip("transformers", "5.24")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_over_pynccl() -> None:
    told = reports("tests.models.gpu_ranks", 2, "pynccl", environment=sharing)
    assert list(told) == list(MODELS)
    for each in told.values():
        for report in each:
            check(Comparison(**report["found"]))
