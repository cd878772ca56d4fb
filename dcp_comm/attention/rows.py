"""Gathered KV: every rank's rows of one request in one piece of scratch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm import sharding
from dcp_comm.attention.scratch import views_of
from dcp_comm.attention.ways import front
from dcp_comm.checks import check_int
from dcp_comm.communicator import Communicator
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.arguments import Refuse
from dcp_comm.workspace import Workspace, WorkspaceSlot


class RowGather:
    """Brings the rows that the ranks hold of one request together on every rank.

    The rows stay as the all-gather leaves them, rank after rank; `places` says where a token lies,
    so that nothing is copied into another order. The winners of a merge with output ``global``,
    through `places`, are then rows for `sparse_attention`.

    Args:
        comm: The ranks among which the tokens are dealt, in the order of the interleave.
        max_tokens: Most tokens of a request, over all ranks.
        width: Elements of a row.
        dtype: Of the rows, any.
        interleave: Consecutive tokens dealt to a rank at a time.

    Raises:
        CommArgumentError: An argument is not as above. Construction sends nothing.
    """

    def __init__(
        self,
        comm: Communicator,
        max_tokens: int,
        width: int,
        dtype: torch.dtype,
        interleave: int = 1,
    ) -> None:
        for name, value in (("max_tokens", max_tokens), ("width", width)):
            check_int("RowGather", name, value, 1)
        check_int("RowGather", "interleave", interleave, 1)
        if not isinstance(dtype, torch.dtype):
            raise Refuse("RowGather", where=comm.where)("dtype", repr(dtype), "a torch.dtype")
        self._comm, self._max_tokens = comm, max_tokens
        self._width, self._dtype, self._interleave = width, dtype, interleave

    def specs(self) -> tuple[BufferSpec, ...]:
        """Return one buffer, ``p`` times the most tokens of a rank; it holds the result."""
        shape = self._comm.size, self._most(self._max_tokens), self._width
        return (BufferSpec("gathered rows", shape, self._dtype),)

    @property
    def nbytes(self) -> int:
        """Bytes of `specs`."""
        return sum(spec.nbytes for spec in self.specs())

    def __call__(
        self,
        rows: Tensor,
        length: int,
        scratch: Sequence[Tensor] | None = None,
        workspace: Workspace | WorkspaceSlot | None = None,
    ) -> Tensor:
        """Gather a request's rows; collective, with the same ``length`` on every rank.

        Args:
            rows: (n, width), any strides: this rank's tokens of the request in order, n being the
                local length of ``length``.
            length: Global length of the request, at most max_tokens.
            scratch: One view, of `specs`, taken together with whatever must stay alive. None to
                take it from ``workspace``, or to allocate it.
            workspace: Where to take it from, for a caller that keeps nothing else there.

        Returns:
            The rows of all ranks, a view of the scratch: valid as long as that is. Rows that
            `places` does not name are anything.

        Raises:
            CommArgumentError: An argument is not as above; nothing was sent.
            WorkspaceExhausted: The workspace is locked and too small; nothing was sent.
            CommMismatch: Ranks differ in what they are about to gather.
        """
        comm = self._comm
        refuse = Refuse("RowGather", comm.device, comm.where)
        check_int("RowGather", "length", length, 0, self._max_tokens)
        count = self._local(length, comm.rank)
        refuse.unless_tensor("rows", rows, (count, self._width), (self._dtype,))
        views = views_of(refuse, self.specs(), comm.device, scratch, workspace)
        refuse.if_overlapping(views, rows)
        gathered = front(views[0], comm.size, self._most(length), self._width)
        comm.announce("gather rows", length=length, width=self._width, dtype=self._dtype)
        mine = gathered[comm.rank]
        mine[:count].copy_(rows.detach())
        comm.all_gather_into(gathered, mine)
        return gathered.flatten(0, 1)

    def places(self, ids: Tensor, length: int) -> Tensor:
        """Return where tokens lie among the gathered rows of a request of this length.

        Args:
            ids: Integers of any shape, global positions; below 0 is none.
            length: As for the call.

        Returns:
            Like ``ids``; -1 where there is none.
        """
        deal = {"size": self._comm.size, "interleave": self._interleave}
        rank = sharding.owner(ids, **deal)
        place = rank * self._most(length) + sharding.local_index(ids, **deal)
        return place.masked_fill_(ids < 0, -1)

    def _most(self, length: int) -> int:
        """The most of ``length`` tokens that any rank holds."""
        return self._local(length, 0)

    def _local(self, length: int, rank: int) -> int:
        return sharding.local_length(
            length, rank=rank, size=self._comm.size, interleave=self._interleave
        )
