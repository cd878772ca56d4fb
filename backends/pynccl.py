"""Backend "pynccl": libnccl itself, through ctypes; shares torch's and needs nothing installed."""

import ctypes
import logging

import torch

from dcp_comm.backend import Backend
from dcp_comm.deadline import Deadline
from dcp_comm.errors import DcpCommError
from dcp_comm.nccl.backend import NcclBackend, known
from dcp_comm.nccl.codes import BYTES, SUCCESS, Version
from dcp_comm.nccl.functions import Functions
from dcp_comm.nccl.handle import Handle
from dcp_comm.nccl.life import run_on_device
from dcp_comm.nccl.options import NcclOptions, configuration
from dcp_comm.rendezvous import Rendezvous

_logger = logging.getLogger("dcp_comm")

_NO_COLOR = -1


class PyNcclHandle(Handle):
    """One ncclComm_t.

    Args:
        nccl: The libnccl that made it.
        comm: Its address.
        options: With which it was made; None for one that was not made here.
    """

    def __init__(self, nccl: Functions, comm: int, options: NcclOptions | None) -> None:
        self.nccl, self.comm, self.options = nccl, comm, options
        self.exchanges = "ncclAlltoAll" in nccl
        self._call = nccl.call

    def all_gather(self, send: int, recv: int, nbytes: int, stream: int) -> int:
        """Call ncclAllGather."""
        return self._call["ncclAllGather"](send, recv, nbytes, BYTES, self.comm, stream)

    def all_to_all(self, send: int, recv: int, nbytes: int, stream: int) -> int:
        """Call ncclAlltoAll."""
        return self._call["ncclAlltoAll"](send, recv, nbytes, BYTES, self.comm, stream)

    def reduce_scatter(
        self, send: int, recv: int, count: int, dtype: int, op: int, stream: int
    ) -> int:
        """Call ncclReduceScatter."""
        return self._call["ncclReduceScatter"](send, recv, count, dtype, op, self.comm, stream)

    def all_reduce(self, buffer: int, count: int, dtype: int, op: int, stream: int) -> int:
        """Call ncclAllReduce."""
        return self._call["ncclAllReduce"](buffer, buffer, count, dtype, op, self.comm, stream)

    def broadcast(self, buffer: int, nbytes: int, root: int, stream: int) -> int:
        """Call ncclBroadcast."""
        return self._call["ncclBroadcast"](buffer, buffer, nbytes, BYTES, root, self.comm, stream)

    def send(self, buffer: int, nbytes: int, peer: int, stream: int) -> int:
        """Call ncclSend."""
        return self._call["ncclSend"](buffer, nbytes, BYTES, peer, self.comm, stream)

    def recv(self, buffer: int, nbytes: int, peer: int, stream: int) -> int:
        """Call ncclRecv."""
        return self._call["ncclRecv"](buffer, nbytes, BYTES, peer, self.comm, stream)

    def group_start(self) -> int:
        """Call ncclGroupStart."""
        return self._call["ncclGroupStart"]()

    def group_end(self) -> int:
        """Call ncclGroupEnd."""
        return self._call["ncclGroupEnd"]()

    def async_error(self) -> int:
        """Call ncclCommGetAsyncError."""
        found = ctypes.c_int()
        code = self._call["ncclCommGetAsyncError"](self.comm, ctypes.byref(found))
        return found.value if code == SUCCESS else code

    def explain(self, code: int) -> str:
        """Call ncclGetErrorString and ncclGetLastError."""
        return self.nccl.explain(code)

    def destroy(self) -> int:
        """Call ncclCommDestroy."""
        return self._call["ncclCommDestroy"](self.comm)

    def abort(self) -> int:
        """Call ncclCommAbort."""
        return self._call["ncclCommAbort"](self.comm)


class PyNcclBackend(NcclBackend[PyNcclHandle]):
    """A communicator made, split or adopted through ctypes."""

    name = "pynccl"
    options_type = NcclOptions

    @classmethod
    def _missing(cls) -> str:
        try:
            Functions.load()
        except DcpCommError as error:
            return str(error)
        return ""

    @classmethod
    def _version(cls) -> Version:
        return Functions.load().version

    @classmethod
    def _make_id(cls) -> bytes:
        return Functions.load().make_id()

    @classmethod
    def _join(cls, unique_id: bytes, rendezvous: Rendezvous) -> PyNcclHandle:
        nccl, options = Functions.load(), _options(rendezvous)
        _logger.info("%s: libnccl %s", rendezvous.name, nccl.found)
        config = configuration(options, rendezvous.name, nccl.version)
        comm = nccl.join(rendezvous.size, unique_id, rendezvous.rank, config)
        return PyNcclHandle(nccl, comm, options)

    def split(self, child: Rendezvous | None, members: tuple[int, ...]) -> Backend | None:
        """Call ncclCommSplit, on every rank of the parent; a new id where NCCL has no split."""
        handle = self._require_handle()
        if "ncclCommSplit" not in handle.nccl:
            return super().split(child, members)
        color, key = (_NO_COLOR, 0) if child is None else (min(members), child.rank)
        config = None
        if child is not None and handle.options is not None:
            config = configuration(handle.options, child.name, handle.nccl.version)

        def split() -> PyNcclHandle:
            torch.cuda.synchronize(self.device)
            part = handle.nccl.split(handle.comm, color, key, config)
            return PyNcclHandle(handle.nccl, part, handle.options)

        deadline = Deadline(self.timeout) if child is None else child.deadline
        part = run_on_device(split, self.device, deadline, "splitting the NCCL communicator")
        self.shares = handle.options is None or bool(handle.options.split_share)
        if child is None:
            return None
        place = (child.rank, child.size, self.device, child.timeout)
        return PyNcclBackend(part, *place, shares=self.shares, **known(child))


def _options(rendezvous: Rendezvous) -> NcclOptions:
    given = rendezvous.options
    return given if isinstance(given, NcclOptions) else NcclOptions()
