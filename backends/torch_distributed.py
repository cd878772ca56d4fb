"""Backend "torch": torch.distributed, gloo on CPU and nccl on CUDA.

Rides on the application's process group where one is given and never destroys it; otherwise makes a
group of its own over the rendezvous' store, outside torch's registry.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist

from dcp_comm import gloo
from dcp_comm.backend import Backend, Capabilities, copy_bytes, on_stream
from dcp_comm.contract import Call, byte_view
from dcp_comm.deadline import Deadline
from dcp_comm.errors import BackendUnavailable, CommClosed, DcpCommError
from dcp_comm.nccl import codes
from dcp_comm.rendezvous import Rendezvous

_REDUCE = {"sum": "SUM", "prod": "PRODUCT", "max": "MAX", "min": "MIN"}


class TorchBackend(Backend):
    """Calls of torch.distributed on byte views, waited for by polling on CPU."""

    name: ClassVar[str] = "torch"
    capabilities: ClassVar[Capabilities] = Capabilities(devices=("cpu", "cuda"), capturable=True)

    def __init__(self, group: dist.ProcessGroup, device: torch.device, *, owned: bool) -> None:
        super().__init__(group.rank(), group.size(), device)
        self._group: dist.ProcessGroup | None = group
        self._owned = owned
        # torch 2.13 renamed these two; the old names warn there and are all that 2.10-2.12 have.
        self._all_gather = _first_of("all_gather_single", "all_gather_into_tensor")
        self._reduce_scatter = _first_of("reduce_scatter_single", "reduce_scatter_tensor")

    @classmethod
    def unavailable(cls) -> str:
        """Say so when torch was built without torch.distributed."""
        return "" if dist.is_available() else "this torch was built without torch.distributed"

    @classmethod
    def library(cls, device: torch.device) -> str:
        """Torch's version, with NCCL's on CUDA."""
        if device.type == "cpu":
            return f"gloo of torch {torch.__version__}"
        version = ".".join(map(str, torch.cuda.nccl.version()))
        return f"nccl {version} of torch {torch.__version__}"

    @classmethod
    def exclusive(cls, device: torch.device) -> str:
        """On CUDA a rank needs a GPU of its own, as NCCL does."""
        return codes.exclusive_gpu(device) if device.type == "cuda" else ""

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Use the given group, or connect one of our own."""
        if rendezvous.group is not None:
            return cls(rendezvous.group, rendezvous.device, owned=False)
        on_cpu = rendezvous.device.type == "cpu"
        group = gloo.connect(rendezvous, "gloo") if on_cpu else _nccl_group(rendezvous)
        return cls(group, rendezvous.device, owned=True)

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        """Start every call, then wait on CPU; on CUDA the stream waits instead of the host."""
        group = self._require_group()
        try:
            with on_stream(stream):
                if self.device.type == "cpu":
                    self._issue_gloo(group, calls, deadline)
                else:
                    self._issue_nccl(group, calls)
        except DcpCommError:
            raise
        except RuntimeError as error:
            raise gloo.translate(error, " + ".join(call.op for call in calls)) from error

    def abort(self) -> None:
        """Drop the group if it is ours: its connections close and waiting peers learn of it."""
        group, self._group = self._group, None
        if group is not None and self._owned and self.device.type != "cpu":
            group.abort()

    def close(self, deadline: Deadline) -> None:
        """Shut down a group of ours; leave the application's as it is."""
        group, self._group = self._group, None
        if group is not None and self._owned and self.device.type != "cpu":
            deadline.run(group.shutdown, "shutting down the nccl group")

    def _require_group(self) -> dist.ProcessGroup:
        if self._group is None:
            raise CommClosed("torch: the process group was dropped by close or abort")
        return self._group

    def _issue_gloo(
        self, group: dist.ProcessGroup, calls: Sequence[Call], deadline: Deadline
    ) -> None:
        started = [_pollable(call) for call in calls]
        works = [self._start(group, call, in_background=True) for call in started]
        joint = [work for call, work in zip(calls, works, strict=True) if call.collective]
        with gloo.outliving(group, joint):
            for call, work in zip(started, works, strict=True):
                self._finish(call, work, deadline)
        for call, done in zip(calls, started, strict=True):
            if call is not done:
                copy_bytes(call.output, done.output.view(self.size, -1)[self.rank])

    def _finish(self, call: Call, work: dist.Work, deadline: Deadline) -> None:
        # Gloo's work for a send or recv never reports completion to a poll, only to wait().
        if call.collective:
            gloo.finish(work, deadline, call.op)
        else:
            deadline.run(work.wait, call.op)
        if call.reduce == "avg":
            call.output.div_(self.size)

    def _issue_nccl(self, group: dist.ProcessGroup, calls: Sequence[Call]) -> None:
        pairs = [call for call in calls if call.op in ("send", "recv")]
        for call in calls:
            if call.op not in ("send", "recv"):
                self._start(group, call, in_background=False)
        if pairs:
            # dist.batch_isend_irecv does the same, but only for groups in torch's registry.
            group._start_coalescing(self.device)
            for call in pairs:
                start = group.send if call.op == "send" else group.recv
                start([self._plain(call.output)], call.peer, 0)
            group._end_coalescing(self.device).wait()

    def _start(self, group: dist.ProcessGroup, call: Call, *, in_background: bool) -> Any:
        how: dict[str, Any] = {"group": group, "async_op": in_background}
        match call.op:
            case "all_gather_into":
                return self._all_gather(self._plain(call.output), self._plain(call.input), **how)
            case "all_to_all_into":
                output, input = self._plain(call.output), self._plain(call.input)
                return dist.all_to_all_single(output, input, **how)
            case "reduce_scatter_into":
                op, input = self._reduce_op(call.reduce), call.input.detach()
                output = call.output.reshape(-1)
                return self._reduce_scatter(output, input.reshape(-1), op=op, **how)
            case "all_reduce":
                return dist.all_reduce(call.output, op=self._reduce_op(call.reduce), **how)
            case "broadcast":
                return dist.broadcast(self._plain(call.output), group_src=call.peer, **how)
            case "send":
                return dist.isend(self._plain(call.input), group=group, group_dst=call.peer)
            case _:
                return dist.irecv(self._plain(call.output), group=group, group_src=call.peer)

    def _plain(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor as what only moves is handed over: bytes, or as it is where NCCL can.

        Making views of both tensors takes the host longer than torch's own call.
        """
        if self.device.type == "cuda" and tensor.dtype in codes.DTYPES and not tensor.requires_grad:
            return tensor
        return byte_view(tensor)

    def _reduce_op(self, name: str) -> Any:
        if name == "avg" and self.device.type != "cpu":
            return dist.ReduceOp.AVG
        return getattr(dist.ReduceOp, _REDUCE.get(name, "SUM"))


def _first_of(*names: str) -> Any:
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def _pollable(call: Call) -> Call:
    """Reduce everything where a part is wanted, as gloo itself does, but in work that reports."""
    if call.op != "reduce_scatter_into":
        return call
    whole = call.input.detach().clone()
    return Call("all_reduce", whole, whole, reduce=call.reduce)


def _nccl_group(rendezvous: Rendezvous) -> dist.ProcessGroup:
    if not dist.is_nccl_available():
        raise BackendUnavailable("torch: this torch was built without NCCL; use device='cpu'")
    rank, size, device = rendezvous.rank, rendezvous.size, rendezvous.device
    store = dist.PrefixStore("nccl", rendezvous.store)
    backend = dist.ProcessGroupNCCL(store, rank, size, dist.ProcessGroupNCCL.Options())
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
    group._register_backend(device, dist.ProcessGroup.BackendType.NCCL, backend)
    return group
