"""What a legal call is: dtype, exact size, contiguity, device, overlap.

Pure functions. Each takes the caller's tensors and this rank's `Place`, and returns the checked
`Call` that backends get, or raises `CommArgumentError` without having touched anything.
"""

from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch

from dcp_comm.errors import CommArgumentError, refusal

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
REDUCTIONS = {
    "sum": FLOATS + INTEGERS,
    "prod": FLOATS + INTEGERS,
    "max": FLOATS + INTEGERS,
    "min": FLOATS + INTEGERS,
    "avg": FLOATS,
}


@dataclass(frozen=True)
class Place:
    """Who makes a call: this rank, the group's size, its device, the backend's name."""

    rank: int
    size: int
    device: torch.device
    backend: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}, backend {self.backend}"


class Outline(NamedTuple):
    """A call without its tensors: the dtype and the number of elements of its `Call.payload`."""

    op: str
    dtype: torch.dtype
    numel: int
    reduce: str
    peer: int

    @property
    def collective(self) -> bool:
        """Whether every rank takes part."""
        return self.op not in ("send", "recv")

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        words = [self.op, f"{dtype} x {self.numel}", self.reduce]
        if self.peer >= 0:
            words.append(f"{'root' if self.op == 'broadcast' else 'peer'} {self.peer}")
        return " ".join(filter(None, words))


@dataclass(eq=False, slots=True)
class Call:
    """One checked call: contiguous tensors on the communicator's device, sizes exact.

    Made once a call, where each microsecond counts: a frozen one would cost three times as much.

    Attributes:
        op: Name of the Communicator's method.
        output: Where the result goes.
        input: What this rank contributes; the same tensor where there is only one.
        reduce: ``sum``, ``prod``, ``max``, ``min``, ``avg``, or empty.
        peer: Root, destination or source; -1 where there is none.
    """

    op: str
    output: torch.Tensor
    input: torch.Tensor
    reduce: str = ""
    peer: int = -1

    @property
    def payload(self) -> torch.Tensor:
        """The tensor that has the same size on every rank and is not a gathered one."""
        return self.output if self.op == "reduce_scatter_into" else self.input

    @property
    def collective(self) -> bool:
        """Whether every rank takes part."""
        return self.op not in ("send", "recv")

    @property
    def nbytes(self) -> int:
        """Bytes of `payload`."""
        return self.payload.nbytes

    @property
    def empty(self) -> bool:
        """Whether the call moves nothing."""
        return self.payload.numel() == 0

    @property
    def outline(self) -> Outline:
        """What remains to be told when the tensors are the caller's again."""
        payload = self.payload
        return Outline(self.op, payload.dtype, payload.numel(), self.reduce, self.peer)

    def __str__(self) -> str:
        return str(self.outline)


def byte_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's bytes as a 1-D uint8 view, whatever its dtype and shape."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def all_gather_into(output: torch.Tensor, input: torch.Tensor, place: Place) -> Call:
    """Check: output (size, *shape), or concatenated on dim 0; input may be slot ``rank`` of it."""
    refuse = _Refuse("all_gather_into", place)
    refuse.unless_usable(output=output, input=input)
    refuse.unless_stacked("output", output, input)
    refuse.if_overlapping(whole=output, slot=input)
    return Call("all_gather_into", output, input)


def all_to_all_into(output: torch.Tensor, input: torch.Tensor, place: Place) -> Call:
    """Check: equal shapes, dim 0 divisible by size, no overlap at all."""
    refuse = _Refuse("all_to_all_into", place)
    refuse.unless_usable(output=output, input=input)
    if input.dim() == 0 or input.shape[0] % place.size:
        need = f"a first dimension divisible by {place.size}, one equal block for each rank"
        refuse("input", _shape(input), need, "Pad dim 0 to a multiple of the world size")
    if output.shape != input.shape:
        refuse("output", _shape(output), f"the input's shape {_shape(input)}")
    refuse.if_overlapping(whole=output, slot=input, in_place=False)
    return Call("all_to_all_into", output, input)


def reduce_scatter_into(output: torch.Tensor, input: torch.Tensor, op: str, place: Place) -> Call:
    """Check: input (size, *shape), or concatenated on dim 0; output may be its slot ``rank``."""
    refuse = _Refuse("reduce_scatter_into", place)
    refuse.unless_usable(output=output, input=input)
    refuse.unless_reducible(op, "input", input)
    refuse.unless_stacked("input", input, output)
    refuse.if_overlapping(whole=input, slot=output)
    return Call("reduce_scatter_into", output, input, reduce=op)


def all_reduce(tensor: torch.Tensor, op: str, place: Place) -> Call:
    """Check: any shape, a dtype that ``op`` is defined on."""
    refuse = _Refuse("all_reduce", place)
    refuse.unless_usable(tensor=tensor)
    refuse.unless_reducible(op, "tensor", tensor)
    return Call("all_reduce", tensor, tensor, reduce=op)


def broadcast(tensor: torch.Tensor, root: int, place: Place) -> Call:
    """Check: any tensor, a root inside the group."""
    refuse = _Refuse("broadcast", place)
    refuse.unless_usable(tensor=tensor)
    refuse.unless_rank("root", root)
    return Call("broadcast", tensor, tensor, peer=root)


def send(tensor: torch.Tensor, peer: int, place: Place) -> Call:
    """Check: any tensor, another rank."""
    refuse = _Refuse("send", place)
    refuse.unless_plain("tensor", tensor)
    refuse.unless_other_rank("peer", peer)
    return Call("send", tensor, tensor, peer=peer)


def recv(tensor: torch.Tensor, peer: int, place: Place) -> Call:
    """Check: any tensor, another rank."""
    refuse = _Refuse("recv", place)
    refuse.unless_usable(tensor=tensor)
    refuse.unless_other_rank("peer", peer)
    return Call("recv", tensor, tensor, peer=peer)


def _shape(tensor: torch.Tensor) -> str:
    return str(tuple(tensor.shape))


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


class _Refuse:
    """Raises the worded refusal; its methods are the rules that several operations share."""

    def __init__(self, op: str, place: Place) -> None:
        self.op, self.place = op, place

    def __call__(self, argument: str, got: object, need: str, remedy: str = "") -> NoReturn:
        text = refusal(self.op, argument, got, need, where=str(self.place), remedy=remedy)
        raise CommArgumentError(text)

    def unless_usable(self, **tensors: torch.Tensor) -> None:
        for argument, tensor in tensors.items():
            self.unless_plain(argument, tensor)
            if argument != "input":
                self._unless_writable(argument, tensor)
        output, input = tensors.get("output"), tensors.get("input")
        if output is not None and input is not None and output.dtype != input.dtype:
            self("output", output.dtype, f"the input's dtype {input.dtype}")

    def unless_plain(self, argument: str, tensor: torch.Tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            self(argument, type(tensor).__name__, "a torch.Tensor")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            kind = "meta" if tensor.is_meta else "quantized" if tensor.is_quantized else "sparse"
            self(argument, f"a {kind} tensor", "a dense tensor with memory of its own")
        if tensor.is_conj() or tensor.is_neg():
            self(
                argument,
                "a lazy conj/neg view",
                "plain memory",
                "Call .resolve_conj().resolve_neg()",
            )
        if tensor.device != self.place.device:
            self(argument, f"device {tensor.device}", f"device {self.place.device}")
        if not tensor.is_contiguous():
            got = f"shape {_shape(tensor)} with strides {tensor.stride()}"
            self(argument, got, "a contiguous tensor", "Gather into a contiguous buffer, then copy")

    def _unless_writable(self, argument: str, tensor: torch.Tensor) -> None:
        if tensor.requires_grad:
            self(argument, "requires_grad=True", "a tensor outside autograd", "Pass .detach()")
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            need = "a tensor that may be written here"
            self(
                argument, "an inference tensor outside inference mode", need, "Allocate it outside"
            )

    def unless_stacked(self, argument: str, whole: torch.Tensor, slot: torch.Tensor) -> None:
        size, shape = self.place.size, tuple(slot.shape)
        if whole.shape == (size, *shape):
            return
        legal = [(size, *shape)] + ([(size * shape[0], *shape[1:])] if shape else [])
        if tuple(whole.shape) not in legal:
            need = " or ".join(str(each) for each in legal)
            self(argument, _shape(whole), f"{need}, {size} slots of {shape} in rank order")

    def unless_reducible(self, op: str, argument: str, tensor: torch.Tensor) -> None:
        if op not in REDUCTIONS:
            self("op", repr(op), "one of " + ", ".join(REDUCTIONS))
        if tensor.dtype not in REDUCTIONS[op]:
            legal = ", ".join(str(dtype).removeprefix("torch.") for dtype in REDUCTIONS[op])
            self(argument, tensor.dtype, f"for {op} one of {legal}", "Convert it first")

    def unless_rank(self, argument: str, rank: object) -> None:
        legal = isinstance(rank, int) and not isinstance(rank, bool)
        if not legal or not 0 <= rank < self.place.size:  # type: ignore[operator]
            self(argument, repr(rank), f"a rank from 0 to {self.place.size - 1}")

    def unless_other_rank(self, argument: str, rank: object) -> None:
        self.unless_rank(argument, rank)
        if rank == self.place.rank:
            self(argument, f"{rank}, this rank itself", "another rank", "Copy the tensor instead")

    def if_overlapping(
        self, *, whole: torch.Tensor, slot: torch.Tensor, in_place: bool = True
    ) -> None:
        (start, end), (first, last) = _span(whole), _span(slot)
        if first >= end or last <= start or whole.numel() == 0:
            return
        own = start + self.place.rank * slot.nbytes
        if in_place and first == own:
            return
        need = f"no overlap, or exactly slot {self.place.rank}" if in_place else "no overlap"
        got = f"memory that overlaps the output's at byte {first - start}"
        self("input", got, need, "Use a separate buffer")
