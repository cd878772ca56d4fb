"""The functions of one libnccl, bound through ctypes by presence.

What an old NCCL lacks is refused by name, with the version that first has it, or done another way
where there is one.
"""

import ctypes
from collections.abc import Callable
from typing import Any

from dcp_comm.errors import BackendUnavailable
from dcp_comm.nccl import codes, library
from dcp_comm.nccl.codes import IN_PROGRESS, SUCCESS, UNIQUE_ID_BYTES, Version, version_text
from dcp_comm.nccl.library import Found
from dcp_comm.nccl.options import NcclConfig


class UniqueId(ctypes.Structure):
    """ncclUniqueId, which is passed by value."""

    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


_P, _N, _I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_NUMBER, _COMM, _CONFIG = ctypes.POINTER(_I), ctypes.POINTER(_P), ctypes.POINTER(NcclConfig)
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_NUMBER,),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRankConfig": (_COMM, _I, UniqueId, _I, _CONFIG),
    "ncclCommSplit": (_P, _I, _I, _COMM, _CONFIG),
    "ncclCommCount": (_P, _NUMBER),
    "ncclCommUserRank": (_P, _NUMBER),
    "ncclCommCuDevice": (_P, _NUMBER),
    "ncclCommGetAsyncError": (_P, _NUMBER),
    "ncclCommDestroy": (_P,),
    "ncclCommAbort": (_P,),
    "ncclAllGather": (_P, _P, _N, _I, _P, _P),
    "ncclAlltoAll": (_P, _P, _N, _I, _P, _P),
    "ncclReduceScatter": (_P, _P, _N, _I, _I, _P, _P),
    "ncclAllReduce": (_P, _P, _N, _I, _I, _P, _P),
    "ncclBroadcast": (_P, _P, _N, _I, _I, _P, _P),
    "ncclSend": (_P, _N, _I, _I, _P, _P),
    "ncclRecv": (_P, _N, _I, _I, _P, _P),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
_SINCE: dict[str, Version] = {
    "ncclCommSplit": (2, 18, 0),
    "ncclCommInitRankConfig": (2, 14, 0),
    "ncclSend": (2, 7, 0),
    "ncclRecv": (2, 7, 0),
}
_OLDEST = (2, 4, 0)
_REPLACEABLE = ("ncclAlltoAll", "ncclCommSplit")


class Functions:
    """What one libnccl offers.

    Args:
        found: Where it is.

    Attributes:
        call: The functions by name; each returns ncclResult_t.
        version: Its version.

    Raises:
        BackendUnavailable: It cannot be loaded, or lacks what cannot be done another way.
        CommUsageError: The process holds two different libnccl.
    """

    def __init__(self, found: Found) -> None:
        self.found = found
        self._library = library.open_library(found)
        self.call: dict[str, Callable[..., int]] = {}
        for name, arguments in _ARGUMENTS.items():
            if hasattr(self._library, name):
                self.call[name] = self._bind(name, arguments, _I)
        if "ncclGetVersion" not in self.call:
            raise BackendUnavailable(f"{found} is no libnccl: it has no ncclGetVersion")
        self.version = codes.parse_version(self.read("ncclGetVersion"))
        for name in _ARGUMENTS:
            if name not in _REPLACEABLE:
                self.require(name)

    @classmethod
    def load(cls, path: str | None = None) -> "Functions":
        """Find and bind the library; ``path`` overrides the search."""
        return cls(library.find(path))

    def __contains__(self, name: str) -> bool:
        return name in self.call

    def require(self, name: str) -> None:
        """Refuse what this NCCL does not have.

        Raises:
            BackendUnavailable: Says since when NCCL has it.
        """
        if name not in self.call:
            need, has = version_text(_SINCE.get(name, _OLDEST)), version_text(self.version)
            raise BackendUnavailable(
                f"{name} needs NCCL >= {need}, found {has} at {self.found}. "
                f"Use a newer one; {library.VARIABLE} names another than torch's"
            )

    def read(self, name: str, *comm: int) -> int:
        """Return the one number that a function gives.

        Raises:
            DcpCommError: NCCL refuses.
        """
        value = ctypes.c_int()
        self.unless_ok(self.call[name](*comm, ctypes.byref(value)), name)
        return value.value

    def make_id(self) -> bytes:
        """ncclGetUniqueId; starts a listener that lives as long as this process."""
        unique_id = UniqueId()
        self.unless_ok(self.call["ncclGetUniqueId"](ctypes.byref(unique_id)), "ncclGetUniqueId")
        return bytes(unique_id.internal)

    def join(self, size: int, unique_id: bytes, rank: int, config: NcclConfig) -> int:
        """ncclCommInitRankConfig: return a communicator's address once all ranks have come.

        Raises:
            DcpCommError: NCCL refuses.
        """
        comm, secret = ctypes.c_void_p(), UniqueId.from_buffer_copy(unique_id)
        code = self.call["ncclCommInitRankConfig"](
            ctypes.byref(comm), size, secret, rank, ctypes.byref(config)
        )
        self.unless_ok(code, "ncclCommInitRankConfig")
        return comm.value or 0

    def split(self, comm: int, color: int, key: int, config: NcclConfig | None) -> int:
        """ncclCommSplit: return the part's address, 0 for the color that joins none.

        Raises:
            DcpCommError: NCCL refuses.
        """
        part = ctypes.c_void_p()
        given = None if config is None else ctypes.byref(config)
        code = self.call["ncclCommSplit"](comm, color, key, ctypes.byref(part), given)
        self.unless_ok(code, "ncclCommSplit")
        return part.value or 0

    def explain(self, code: int) -> str:
        """NCCL's own words: on a result code, and on the last error in this process."""
        words = [self._text("ncclGetErrorString", _I, code)]
        if hasattr(self._library, "ncclGetLastError"):
            words.append(self._text("ncclGetLastError", _P, None))
        return "; ".join(filter(None, words))

    def unless_ok(self, code: int, what: str) -> None:
        """Raise what a result code stands for; "in progress" is fine."""
        if code not in (SUCCESS, IN_PROGRESS):
            raise codes.error(code, what, self.explain(code))

    def _text(self, name: str, argument: Any, value: int | None) -> str:
        words = self._bind(name, (argument,), ctypes.c_char_p)(value)
        return (words or b"").decode(errors="replace")

    def _bind(self, name: str, arguments: tuple[Any, ...], result: Any) -> Any:
        function = getattr(self._library, name)
        function.argtypes, function.restype = arguments, result
        return function
