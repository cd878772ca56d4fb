"""Profiler ranges around calls: off unless ``DCP_COMM_RANGES=1``."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def span(name: str, *, cuda: bool) -> Iterator[None]:
    """Mark a stretch of host time for torch's profiler, and for NVTX tools on CUDA."""
    with torch.profiler.record_function(name):
        if cuda:
            torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            if cuda:
                torch.cuda.nvtx.range_pop()
