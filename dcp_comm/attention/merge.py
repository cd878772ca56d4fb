"""LSE merge: the ranks' attention over their own tokens becomes attention over all of them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.attention.result import BASES, FLOATS, Attended, check_out
from dcp_comm.attention.scratch import views_of
from dcp_comm.attention.ways import WAYS, Shape
from dcp_comm.checks import check_int
from dcp_comm.communicator import Communicator
from dcp_comm.kernels.torch_ops import row_blocks
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.arguments import Refuse
from dcp_comm.workspace import Workspace, WorkspaceSlot


class LseMerge:
    """Merges (out, LSE) of all heads over the ranks; rank r ends with heads ``r * H/p ..``.

    The formula is that of `dcp_comm.attention.combine`, in float32. A rank with LSE -inf counts as
    nothing, whatever its output holds; where all ranks have, the result is 0 with LSE -inf. An LSE
    of +inf or NaN is an error of the attention that made it, and comes out as NaN.

    Beside its scratch a call allocates its result (unless ``out`` is given) and temporaries of
    torch operations, in blocks of 64 rows.

    Args:
        comm: The ranks among which the tokens are dealt, in any order.
        max_rows: Most rows of one merge.
        heads: H, a multiple of the number of ranks.
        dim: Elements of a head's output.
        dtype: Of the outputs: float32, bfloat16 or float16.
        way: ``all_to_all``: one message of outputs and LSEs, the same bits over every backend.
            ``reduce_scatter``: LSEs gathered, then float32 outputs reduced over the heads.
        base: Logarithm of the LSEs: ``e`` or ``2``.
        chunk_rows: Rows exchanged at a time; None for max_rows. Scratch is proportional to it.

    Raises:
        CommArgumentError: An argument is not as above. Construction sends nothing.
    """

    def __init__(
        self,
        comm: Communicator,
        max_rows: int,
        heads: int,
        dim: int,
        dtype: torch.dtype = torch.float32,
        way: str = "all_to_all",
        base: str = "e",
        chunk_rows: int | None = None,
    ) -> None:
        refuse = Refuse("LseMerge", comm.device, comm.where)
        for name, value in (("max_rows", max_rows), ("heads", heads), ("dim", dim)):
            check_int("LseMerge", name, value, 1)
        if heads % comm.size:
            remedy = "Choose a group whose size divides the heads"
            raise refuse("heads", heads, f"a multiple of the {comm.size} ranks", remedy)
        refuse.unless_one_of("dtype", dtype, FLOATS)
        refuse.unless_one_of("way", way, tuple(WAYS))
        refuse.unless_one_of("base", base, BASES)
        if chunk_rows is not None:
            check_int("LseMerge", "chunk_rows", chunk_rows, 1)
        self._shape = Shape(comm, heads, dim, dtype, base)
        self._way = WAYS[way](self._shape)
        self._max_rows, self._chunk_rows = max_rows, min(chunk_rows or max_rows, max_rows)

    def __repr__(self) -> str:
        shape = self._shape
        return (
            f"LseMerge(max_rows={self._max_rows}, heads={shape.heads}, dim={shape.dim}, "
            f"dtype={shape.dtype}, way={self._way.name!r}, base={shape.base!r}, "
            f"chunk_rows={self._chunk_rows})"
        )

    def specs(self) -> tuple[BufferSpec, ...]:
        """Return the scratch of any merge of up to max_rows rows; see `dcp_comm.attention.ways`."""
        return self._way.specs(self._chunk_rows)

    @property
    def nbytes(self) -> int:
        """Bytes of `specs`, without alignment."""
        return sum(spec.nbytes for spec in self.specs())

    @torch.no_grad()
    def __call__(
        self,
        partial: Tensor,
        lse: Tensor,
        scratch: Sequence[Tensor] | None = None,
        workspace: Workspace | WorkspaceSlot | None = None,
        out: Attended | None = None,
    ) -> Attended:
        """Merge T rows; collective, with the same T on every rank.

        Args:
            partial: (T, H, V) of the dtype, any strides: this rank's own output for all heads.
            lse: float32 (T, H), any strides.
            scratch: Views of `specs`, taken together with whatever must stay alive. None to take
                them from ``workspace``, or to allocate.
            workspace: Where to take `specs` from, for a caller that keeps nothing else there.
            out: Where to write, (T, H/p, V) and (T, H/p), contiguous, apart from the inputs; None
                to allocate.

        Returns:
            ``out``, or the allocated result, which is the caller's.

        Raises:
            CommArgumentError: An argument is not as above; nothing was sent.
            WorkspaceExhausted: The workspace is locked and too small; nothing was sent.
            CommMismatch: Ranks differ in what they are about to merge.
        """
        shape, comm = self._shape, self._shape.comm
        refuse = Refuse("LseMerge", comm.device, comm.where)
        refuse.unless_tensor("partial", partial, (None, shape.heads, shape.dim), (shape.dtype,))
        rows = len(partial)
        refuse.unless_tensor("lse", lse, (rows, shape.heads), (torch.float32,))
        if rows > self._max_rows:
            need = f"at most max_rows = {self._max_rows}"
            raise refuse("partial", f"{rows} rows", need, "Merge them in parts")
        if out is None:
            out = Attended.allocate(rows, shape.kept, shape.dim, shape.dtype, comm.device)
        check_out(refuse, out, rows, shape.kept, shape.dim, shape.dtype)
        refuse.if_overlapping(out, partial, lse, argument="out")
        views = views_of(refuse, self.specs(), comm.device, scratch, workspace)
        refuse.if_overlapping(views, partial, lse, *out)
        comm.announce("lse_merge", rows=rows, options=repr(self))
        for chunk in row_blocks(rows, self._chunk_rows):
            self._way.merge(Attended(partial[chunk], lse[chunk]), out.part(chunk), views)
        return out


def lse_merge(
    comm: Communicator,
    partial: Tensor,
    lse: Tensor,
    *,
    way: str = "all_to_all",
    base: str = "e",
    workspace: Workspace | WorkspaceSlot | None = None,
    out: Attended | None = None,
) -> Attended:
    """Merge the rows at hand with an `LseMerge` of their shape; collective.

    Where scratch is to be reserved beforehand, make the `LseMerge` and reserve its ``specs()``.

    Args:
        comm: The ranks among which the tokens are dealt.
        partial: float32, bfloat16 or float16 (T, H, V), any strides: this rank's own attention
            output for all heads; anything where it had no token.
        lse: float32 (T, H): -inf where it had no token.
        way: ``all_to_all`` or ``reduce_scatter``; see `LseMerge`.
        base: Logarithm of the LSEs: ``e`` or ``2``.
        workspace: Where to take scratch from; None to allocate it.
        out: Where to write; None to allocate.

    Returns:
        (out, lse) of heads ``rank * H/p ..``, (T, H/p, V) and (T, H/p), which are the caller's.

    Raises:
        CommArgumentError: An argument is not as above; nothing was sent.
        WorkspaceExhausted: The workspace is locked and too small; nothing was sent.
        CommMismatch: Ranks differ in what they are about to merge.
    """
    refuse = Refuse("lse_merge", comm.device, comm.where)
    refuse.unless_tensor("partial", partial, (None, None, None), FLOATS)
    rows, heads, dim = partial.shape
    merge = LseMerge(comm, max(1, rows), heads, dim, partial.dtype, way, base)
    return merge(partial, lse, workspace=workspace, out=out)
