"""What a legal merge argument is; every rule refuses before anything is sent or written."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.errors import CommArgumentError, refusal
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.result import MergeResult

INTEGERS = (torch.int32, torch.int64)
LOGITS = (torch.float32, torch.bfloat16, torch.float16)

_COLUMNS = {"out scores": torch.float32, "out ids": torch.int32}


class Refuse:
    """Words the refusals of one operation; its other methods are the rules, which raise them."""

    def __init__(self, operation: str, device: torch.device | None = None, where: str = "") -> None:
        """Keep what every refusal says, and where tensors must lie (None: anywhere)."""
        self._operation, self._device, self._where = operation, device, where

    def __call__(
        self, argument: str, got: object, need: str, remedy: str = ""
    ) -> CommArgumentError:
        """Return the worded error, to be raised."""
        text = refusal(self._operation, argument, got, need, where=self._where, remedy=remedy)
        return CommArgumentError(text)

    def unless_one_of(self, argument: str, value: object, legal: Sequence[object]) -> None:
        """One of these, of the same type."""
        if not any(type(value) is type(each) and value == each for each in legal):
            raise self(argument, repr(value), "one of " + ", ".join(map(repr, legal)))

    def unless_none(self, argument: str, value: object, use: str) -> None:
        """Nothing, since it would be of no use here."""
        if value is not None:
            raise self(argument, f"a {type(value).__name__}", f"None, as it is for {use}")

    def unless_tensor(
        self,
        argument: str,
        tensor: object,
        shape: tuple[int | None, ...],
        dtypes: Sequence[torch.dtype],
    ) -> None:
        """A tensor of this shape (None: any size), one of the dtypes, on the device."""
        if not isinstance(tensor, Tensor):
            raise self(argument, type(tensor).__name__, "a torch.Tensor")
        if tensor.dtype not in dtypes:
            raise self(argument, tensor.dtype, " or ".join(map(str, dtypes)))
        if tensor.shape != shape and not _fits(tensor, shape):
            need = ", ".join("any" if size is None else str(size) for size in shape)
            raise self(argument, f"shape {tuple(tensor.shape)}", f"shape ({need})")
        if self._device is not None and tensor.device != self._device:
            raise self(argument, f"device {tensor.device}", f"device {self._device}")

    def unless_integers(self, argument: str, tensor: Tensor | None, rows: int) -> None:
        """None, or an integer a row."""
        if tensor is not None:
            self.unless_tensor(argument, tensor, (rows,), INTEGERS)

    def _unless_dense(self, argument: str, tensor: Tensor) -> None:
        """Unit stride within a row."""
        if tensor.shape[1] > 1 and tensor.stride(1) != 1:
            need = "unit stride within a row"
            raise self(argument, f"strides {tensor.stride()}", need, "Pass .contiguous()")

    def unless_candidates(
        self, scores: Tensor, ids: Tensor, lengths: Tensor | None, k: int
    ) -> None:
        """The arguments of ``pack``."""
        rows = self._unless_ids(ids, lengths, k)
        self.unless_tensor("scores", scores, (rows, k), (torch.float32,))
        self._unless_dense("scores", scores)

    def unless_logits(
        self,
        logits: Tensor,
        ids: Tensor,
        row_starts: Tensor | None,
        lengths: Tensor | None,
        k: int,
    ) -> None:
        """The arguments of ``pack_logits``."""
        rows = self._unless_ids(ids, lengths, k)
        self.unless_tensor("logits", logits, (rows, None), LOGITS)
        self._unless_dense("logits", logits)
        self.unless_integers("row_starts", row_starts, rows)

    def unless_result(self, out: MergeResult, rows: int, k: int) -> None:
        """A result of exactly these rows that may be written."""
        if not isinstance(out, MergeResult):
            raise self("out", type(out).__name__, "a MergeResult", "See MergeResult.allocate")
        self.unless_tensor("out.ids", out.ids, (rows, k), (torch.int32,))
        self._unless_dense("out.ids", out.ids)
        self.unless_tensor("out.counts", out.counts, (rows,), (torch.int32,))
        self.unless_tensor("out.certified", out.certified, (rows,), (torch.bool,))
        self._unless_contiguous("out.counts", out.counts)
        self._unless_contiguous("out.certified", out.certified)
        self._unless_writable("out.ids", out.ids)
        self._unless_writable("out.counts", out.counts)
        self._unless_writable("out.certified", out.certified)

    def unless_columns(self, out: tuple[Tensor, Tensor], rows: int, k: int) -> None:
        """Scores and ids of exactly these rows that may be written."""
        if not isinstance(out, tuple) or len(out) != len(_COLUMNS):
            raise self("out", type(out).__name__, "a pair of tensors, scores and ids")
        for (name, dtype), column in zip(_COLUMNS.items(), out, strict=True):
            self.unless_tensor(name, column, (rows, k), (dtype,))
            self._unless_contiguous(name, column)
            self._unless_writable(name, column)

    def unless_scratch(self, scratch: Sequence[Tensor], specs: Sequence[BufferSpec]) -> None:
        """One contiguous view a spec, in order."""
        if len(scratch) != len(specs):
            raise self("scratch", f"{len(scratch)} views", f"{len(specs)}, one for each of specs()")
        for view, spec in zip(scratch, specs, strict=True):
            name = f"scratch {spec.name!r}"
            self.unless_tensor(name, view, spec.shape, (spec.dtype,))
            self._unless_contiguous(name, view)

    def if_overlapping(
        self, scratch: Sequence[Tensor], *tensors: Tensor | None, argument: str = "scratch"
    ) -> None:
        """No byte shared with what is overwritten before the tensors are done with."""
        taken = [_span(view) for view in scratch]
        for tensor in tensors:
            if tensor is None:
                continue
            first, last = _span(tensor)
            for start, end in taken:
                if first < end and start < last:
                    got = f"overlaps a {tensor.dtype} tensor {tuple(tensor.shape)} of this call"
                    remedy = "Take from the workspace together what must be alive together"
                    raise self(argument, got, "memory apart from inputs and results", remedy)

    def _unless_ids(self, ids: Tensor, lengths: Tensor | None, k: int) -> int:
        """Local ids and lengths; returns the number of rows."""
        self.unless_tensor("ids", ids, (None, k), (torch.int32,))
        self._unless_dense("ids", ids)
        self.unless_integers("lengths", lengths, ids.shape[0])
        return ids.shape[0]

    def _unless_contiguous(self, argument: str, tensor: Tensor) -> None:
        """No gaps."""
        if not tensor.is_contiguous():
            raise self(argument, f"strides {tensor.stride()}", "a contiguous view")

    def _unless_writable(self, argument: str, tensor: Tensor) -> None:
        """No two elements in one place; not an inference tensor outside of that mode."""
        row = tensor.shape[1] if tensor.dim() == 2 else 1
        if not tensor.is_contiguous() and tensor.shape[0] > 1 and tensor.stride(0) < row:
            raise self(argument, f"strides {tensor.stride()}", "rows that do not overlap")
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            need = "a tensor that may be written here"
            raise self(argument, "an inference tensor outside inference mode", need)


def _fits(tensor: Tensor, shape: tuple[int | None, ...]) -> bool:
    if tensor.dim() != len(shape):
        return False
    for got, need in zip(tensor.shape, shape, strict=True):
        if need is not None and got != need:
            return False
    return True


def _span(tensor: Tensor) -> tuple[int, int]:
    """Addresses of the first byte and of the first byte behind."""
    nbytes = tensor.nbytes
    if nbytes == 0:
        return 0, 0
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + nbytes
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((size - 1) * stride for size, stride in steps)
    return tensor.data_ptr(), tensor.data_ptr() + reach * tensor.itemsize
