"""What attention returns, and the logarithms in which it says how much it is worth."""

from typing import NamedTuple

import torch
from torch import Tensor

from dcp_comm.topk.arguments import Refuse

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
BASES = ("e", "2")


class Attended(NamedTuple):
    """Attention of T rows and some heads over some tokens; the caller owns the memory.

    Attributes:
        out: (T, heads, V), the softmax-weighted sum of the values.
        lse: float32 (T, heads), logarithm of the sum of the exponentiated logits, to the base that
            was asked for; -inf where there was no token.
    """

    out: Tensor
    lse: Tensor

    @classmethod
    def allocate(
        cls,
        rows: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> "Attended":
        """Return memory for a result, uninitialised."""
        out = torch.empty(rows, heads, dim, dtype=dtype, device=device)
        return cls(out, torch.empty(rows, heads, dtype=torch.float32, device=device))

    def part(self, rows: slice) -> "Attended":
        """Return a view of some of the rows."""
        return Attended(self.out[rows], self.lse[rows])

    def detached(self) -> "Attended":
        """Return the same outside autograd."""
        return Attended(self.out.detach(), self.lse.detach())


def check_out(
    refuse: Refuse, out: Attended, rows: int, heads: int, dim: int, dtype: torch.dtype
) -> None:
    """Refuse where a result of this shape cannot be written."""
    if not isinstance(out, Attended):
        raise refuse("out", type(out).__name__, "an Attended", "See Attended.allocate")
    refuse.unless_tensor("out.out", out.out, (rows, heads, dim), (dtype,))
    refuse.unless_tensor("out.lse", out.lse, (rows, heads), (torch.float32,))
    for name, tensor in zip(out._fields, out, strict=True):
        if not tensor.is_contiguous():
            raise refuse(f"out.{name}", f"strides {tensor.stride()}", "contiguous memory")
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            need = "a tensor that may be written here"
            raise refuse(f"out.{name}", "an inference tensor outside inference mode", need)
