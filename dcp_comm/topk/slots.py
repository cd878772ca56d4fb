"""Output "slots": where a rank's winners lie in its paged cache."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.kernels import torch_ops as ops
from dcp_comm.topk.arguments import Refuse


@dataclass(frozen=True, eq=False)
class BlockTable:
    """An engine's block table, and which of its rows are whose.

    Attributes:
        pages: int32 (R, pages), any row stride.
        requests: Integer (T,), each row's request; None where every row has its own.
        page_size: Tokens a page.
    """

    pages: Tensor
    requests: Tensor | None
    page_size: int

    @classmethod
    def checked(
        cls,
        refuse: Refuse,
        rows: int,
        pages: Tensor | None,
        requests: Tensor | None,
        page_size: int,
    ) -> "BlockTable":
        """Return the table of a merge of ``rows`` rows.

        Raises:
            CommArgumentError: There is none, or it is not as above.
        """
        if pages is None:
            need = "the block table that output 'slots' is read from"
            raise refuse("block_table", None, need, "Pass int32 (R, pages)")
        requests_or_rows = rows if requests is None else None
        refuse.unless_tensor("block_table", pages, (requests_or_rows, None), (torch.int32,))
        refuse.unless_integers("request_ids", requests, rows)
        return cls(pages, requests, page_size)

    def translate(self, ids: Tensor, rows: slice) -> None:
        """Replace the local positions int32 (n, K) of the merge's ``rows`` by slots."""
        if self.requests is None:
            ops.to_slots(ids, self.pages[rows], None, self.page_size)
        else:
            ops.to_slots(ids, self.pages, self.requests[rows], self.page_size)
