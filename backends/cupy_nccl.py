"""Backend "cupy": CuPy's NcclCommunicator, for applications that have CuPy and trust its binding.

CuPy 13 gives and takes a unique id as a tuple of C chars, 14 as bytes. Its error class cannot be
made of result codes beyond 5, and its destructor calls ncclCommDestroy: codes are read here, and a
communicator is never left to the garbage collector.
"""

import ctypes
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from dcp_comm.errors import BackendUnavailable, DcpCommError
from dcp_comm.nccl.backend import NcclBackend
from dcp_comm.nccl.codes import BYTES, SUCCESS, Version, error, parse_version
from dcp_comm.nccl.handle import Handle
from dcp_comm.nccl.library import loaded, unless_one
from dcp_comm.rendezvous import Rendezvous

_INSTALL = "pip install cupy-cuda12x or cupy-cuda13x, as torch's CUDA needs"


class CupyHandle(Handle):
    """One cupy.cuda.nccl.NcclCommunicator."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        # Never to be collected: the destructor would enter NCCL at any time, and at exit.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(comm))

    def all_gather(self, send: int, recv: int, nbytes: int, stream: int) -> int:
        """Call allGather."""
        return result(self.comm.allGather, send, recv, nbytes, BYTES, stream)

    def reduce_scatter(
        self, send: int, recv: int, count: int, dtype: int, op: int, stream: int
    ) -> int:
        """Call reduceScatter."""
        return result(self.comm.reduceScatter, send, recv, count, dtype, op, stream)

    def all_reduce(self, buffer: int, count: int, dtype: int, op: int, stream: int) -> int:
        """Call allReduce."""
        return result(self.comm.allReduce, buffer, buffer, count, dtype, op, stream)

    def broadcast(self, buffer: int, nbytes: int, root: int, stream: int) -> int:
        """Call broadcast."""
        return result(self.comm.broadcast, buffer, buffer, nbytes, BYTES, root, stream)

    def send(self, buffer: int, nbytes: int, peer: int, stream: int) -> int:
        """Call send."""
        return result(self.comm.send, buffer, nbytes, BYTES, peer, stream)

    def recv(self, buffer: int, nbytes: int, peer: int, stream: int) -> int:
        """Call recv."""
        return result(self.comm.recv, buffer, nbytes, BYTES, peer, stream)

    def group_start(self) -> int:
        """Call groupStart."""
        return result(_nccl().groupStart)

    def group_end(self) -> int:
        """Call groupEnd."""
        return result(_nccl().groupEnd)

    def async_error(self) -> int:
        """Call check_async_error."""
        return result(self.comm.check_async_error)

    def explain(self, code: int) -> str:
        """CuPy hands out no words of NCCL's beyond its error class."""
        return ""

    def destroy(self) -> int:
        """Call destroy."""
        return result(self.comm.destroy)

    def abort(self) -> int:
        """Call abort."""
        return result(self.comm.abort)


class CupyBackend(NcclBackend[CupyHandle]):
    """A communicator made by CuPy; parts get a new id each, for CuPy has no ncclCommSplit."""

    name = "cupy"

    @classmethod
    def _missing(cls) -> str:
        if find_spec("cupy") is None:
            return f"CuPy is not installed: {_INSTALL}"
        try:
            _nccl()
            unless_one(loaded())
        except DcpCommError as problem:
            return str(problem)
        return ""

    @classmethod
    def _version(cls) -> Version:
        return parse_version(_nccl().get_version())

    @classmethod
    def _make_id(cls) -> bytes:
        try:
            return as_bytes(_nccl().get_unique_id())
        except (_nccl().NcclError, KeyError) as problem:
            raise error(_code(problem), "get_unique_id") from problem

    @classmethod
    def _join(cls, unique_id: bytes, rendezvous: Rendezvous) -> CupyHandle:
        make = _nccl().NcclCommunicator
        try:
            return CupyHandle(in_its_form(make, rendezvous.size, unique_id, rendezvous.rank))
        except (_nccl().NcclError, KeyError) as problem:
            raise error(_code(problem), "NcclCommunicator") from problem


def result(call: Callable[..., object], *arguments: int) -> int:
    """Call CuPy and return the result code that its exception stands for."""
    try:
        call(*arguments)
    except (_nccl().NcclError, KeyError) as problem:
        return _code(problem)
    return SUCCESS


def as_bytes(unique_id: bytes | tuple[int, ...]) -> bytes:
    """Return a unique id's raw bytes, whichever form CuPy gave it in; its chars may be signed."""
    return unique_id if isinstance(unique_id, bytes) else bytes(each % 256 for each in unique_id)


def in_its_form(make: Callable[..., object], size: int, unique_id: bytes, rank: int) -> object:
    """Call NcclCommunicator with the id as this CuPy takes it: bytes, signed or unsigned chars."""
    signed = tuple(each - 256 if each > 127 else each for each in unique_id)
    for form in (unique_id, signed):
        try:
            return make(size, form, rank)
        except (TypeError, OverflowError):
            continue
    return make(size, tuple(unique_id), rank)


def _code(problem: Any) -> int:
    """NcclError has its code; where CuPy could not make one, the KeyError's key is the code."""
    return int(getattr(problem, "status", problem.args[0]))


def _nccl() -> Any:
    try:
        from cupy.cuda import nccl
    except ImportError as problem:
        raise BackendUnavailable(f"cupy.cuda.nccl: {problem}. {_INSTALL}") from problem
    return nccl
