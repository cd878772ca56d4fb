"""What every test shares: all calls are compared, and ``gpu`` tests run where there is one."""

import os

import pytest
import torch

os.environ.setdefault("DCP_COMM_CHECK", "all")
# Torch's C++ warns at length of what tests provoke.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip ``gpu`` tests on machines without CUDA."""
    if torch.cuda.is_available():
        return
    absent = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(absent)
