"""What every test shares: tests marked ``gpu`` run where there is one."""

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip ``gpu`` tests on machines without CUDA."""
    if torch.cuda.is_available():
        return
    absent = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(absent)
