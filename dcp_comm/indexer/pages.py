"""Keys out of pages: which slot a token lies in, and reading tokens into one piece of memory."""

import torch
from torch import Tensor

from dcp_comm.kernels.torch_ops import row_blocks

BLOCK_TOKENS = 1 << 16


def slots(pages: Tensor, first: int, count: int, page_size: int) -> Tensor:
    """Return the slots of one request's local positions ``first ..``, int64 (count,).

    A slot is ``pages[j // page_size] * page_size + j % page_size``, in 64 bits: caches exceed 2^31
    elements.
    """
    j = torch.arange(first, first + count, device=pages.device)
    return pages[j // page_size].to(torch.int64) * page_size + j % page_size


def read_keys(keys: Tensor, cache: Tensor, pages: Tensor, first: int = 0) -> None:
    """Copy one request's keys from local position ``first`` on.

    Args:
        keys: (count, D), contiguous, overwritten.
        cache: (pages, page_size, D), contiguous.
        pages: Integer (any,), this request's pages in order. A page that does not exist reads as
            the nearest that does.
        first: Local position of the first key.
    """
    flat, page_size = cache.flatten(0, 1), cache.shape[1]
    for block in row_blocks(len(keys), BLOCK_TOKENS):
        count = block.stop - block.start
        index = slots(pages, first + block.start, count, page_size).clamp_(0, len(flat) - 1)
        torch.index_select(flat, 0, index, out=keys[block])
