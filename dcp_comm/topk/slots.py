"""Output "slots": what the block table of a paged cache must be."""

import torch
from torch import Tensor

from dcp_comm.kernels.primitives import BlockTable
from dcp_comm.topk.arguments import Refuse


def checked_table(
    refuse: Refuse, rows: int, pages: Tensor | None, requests: Tensor | None, page_size: int
) -> BlockTable:
    """Return the table of a merge of ``rows`` rows.

    Raises:
        CommArgumentError: There is none, or it is not as `BlockTable` says.
    """
    if pages is None:
        need = "the block table that output 'slots' is read from"
        raise refuse("block_table", None, need, "Pass int32 (R, pages)")
    requests_or_rows = rows if requests is None else None
    refuse.unless_tensor("block_table", pages, (requests_or_rows, None), (torch.int32,))
    refuse.unless_integers("request_ids", requests, rows)
    return BlockTable(pages, requests, page_size)
