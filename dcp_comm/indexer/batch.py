"""What the rows of a call are: whose they are, and how far each may see."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from dcp_comm.checks import check_int
from dcp_comm.errors import CommArgumentError, refusal
from dcp_comm.sharding import Shard


class Span(NamedTuple):
    """Consecutive query rows of one request.

    Attributes:
        request: Its index in the batch.
        rows: Where they stand in the batch.
        longest: Global length that the last of them sees, the longest of theirs; 0 for padding.
    """

    request: int
    rows: slice
    longest: int


@dataclass(frozen=True, eq=False)
class IndexerBatch:
    """Requests with query rows at their ends, packed one after another; R requests, T rows.

    The n rows of a request of global length L stand at the positions L-n .. L-1, and each sees
    itself and what is before it: the rows' global lengths are L-n+1 .. L. Where that would be
    negative it is 0. A row of length 0 is padding, which selects nothing; so a request of length 0
    or -1 is padding altogether. One batch serves every layer of a step.

    Attributes:
        lengths: R ints of the host, the same on every rank: each request's *global* length, its
            rows of this step included. Chunks and exchanges are derived from them.
        query_lengths: R ints of the host, the same on every rank: rows of each request. In decode
            1, or more with speculative rows.
        page_table: int32 or int64 (R, any), on the communicator's device, of this rank alone: local
            position j of request r lies in page ``page_table[r, j // page_size]``. What is behind a
            request's last *local* token is padding, never read.

    Raises:
        CommArgumentError: Lengths are no ints of the host, or not one a request.
    """

    lengths: Sequence[int]
    query_lengths: Sequence[int]
    page_table: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", _ints("lengths", self.lengths, -(2**31)))
        object.__setattr__(self, "query_lengths", _ints("query_lengths", self.query_lengths, 0))
        if len(self.query_lengths) != len(self.lengths):
            got, need = len(self.query_lengths), f"{len(self.lengths)}, one for each of lengths"
            raise CommArgumentError(refusal("IndexerBatch", "query_lengths", got, need))

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """First row of each request, and behind them the number of rows."""
        return tuple(accumulate(self.query_lengths, initial=0))

    @property
    def rows(self) -> int:
        """Query rows T."""
        return self.firsts[-1]

    @cached_property
    def contexts(self) -> tuple[int, ...]:
        """Global length that each request's rows see at most; 0 without rows."""
        pairs = zip(self.lengths, self.query_lengths, strict=True)
        return tuple(max(0, length) if rows else 0 for length, rows in pairs)

    @property
    def longest(self) -> int:
        """Global length that any row sees at most."""
        return max(self.contexts, default=0)

    @cached_property
    def row_requests(self) -> Tensor:
        """The request of each row, int64 (T,)."""
        device = self.page_table.device
        counts = torch.tensor(self.query_lengths, dtype=torch.int64, device=device)
        requests = torch.arange(len(self.lengths), device=device)
        return requests.repeat_interleave(counts, output_size=self.rows)

    @cached_property
    def row_lengths(self) -> Tensor:
        """Global length of each row, int64 (T,)."""
        device = self.page_table.device
        lasts = zip(self.lengths, self.firsts[1:], strict=True)
        ahead = [length - end + 1 for length, end in lasts]
        by_request = torch.tensor(ahead, dtype=torch.int64, device=device)
        rows = torch.arange(self.rows, device=device)
        return (by_request[self.row_requests] + rows).clamp_(min=0)

    def local_lengths(self, shard: Shard) -> Tensor:
        """Return how many of a rank's tokens each row sees, int64 (T,).

        Every row has its own global length before it is localized: what differs by one token
        globally differs by one on a single rank only.
        """
        return shard.local_length(self.row_lengths)

    def own_slots(self, shard: Shard, page_size: int) -> Tensor:
        """Return the slot of each row's own token, int64 (T,); -1 where another rank owns it.

        Padding, and a token whose page is below 0 or not in the table, have none either.
        """
        position = self.row_lengths - 1
        if not self.page_table.numel():
            return position.fill_(-1)
        j = shard.local_index(position)
        page = j // page_size
        own = (shard.owner(position) == shard.rank) & (page < self.page_table.shape[1])
        held = self.page_table[self.row_requests, page.where(own, 0)].to(torch.int64)
        return (held * page_size + j % page_size).where(own & (held >= 0), -1)

    def spans(self, rows: slice) -> Iterator[Span]:
        """Yield the requests that some rows belong to, in order."""
        for request, (first, end) in enumerate(pairwise(self.firsts)):
            start, stop = max(first, rows.start), min(end, rows.stop)
            if start < stop:
                longest = max(0, self.lengths[request] - (end - stop))
                yield Span(request, slice(start, stop), longest)


def _ints(argument: str, values: object, least: int) -> tuple[int, ...]:
    """Return plain ints, refusing everything else."""
    if not isinstance(values, Iterable):
        need, remedy = "a sequence of ints", "Pass ints of the host, such as .tolist() gives"
        raise CommArgumentError(
            refusal("IndexerBatch", argument, repr(values), need, remedy=remedy)
        )
    plain = tuple(values)
    for value in plain:
        check_int("IndexerBatch", argument, value, least)
    return plain
