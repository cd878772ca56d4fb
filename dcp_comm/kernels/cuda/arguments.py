"""How kernels are told of tensors: addresses and integers."""

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The numbers of the dtypes in the sources."""


def pointer(tensor: Tensor | None) -> int:
    """Return where a tensor lies; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def integers(column: Tensor | None) -> tuple[int, int]:
    """Return where integers lie, and their form: twice the stride, one more for 64 bits."""
    if column is None:
        return 0, 0
    return column.data_ptr(), 2 * column.stride(0) + (column.dtype == torch.int64)
