"""Handle: what a binding of NCCL has to offer, so that one backend base serves them all."""

from abc import ABC, abstractmethod


class Handle(ABC):
    """One communicator as a binding sees it: device addresses, counts, codes of ``nccl.h``.

    Methods return ncclResult_t. What only moves is counted in bytes.

    Attributes:
        exchanges: Whether the library has an all-to-all of its own (`all_to_all`).
    """

    exchanges = False

    @abstractmethod
    def all_gather(self, send: int, recv: int, nbytes: int, stream: int) -> int:
        """Call ncclAllGather; ``nbytes`` of one rank."""

    def all_to_all(self, send: int, recv: int, nbytes: int, stream: int) -> int:
        """Call ncclAlltoAll; ``nbytes`` of one block; only where ``exchanges``."""
        raise NotImplementedError

    @abstractmethod
    def reduce_scatter(
        self, send: int, recv: int, count: int, dtype: int, op: int, stream: int
    ) -> int:
        """Call ncclReduceScatter; ``count`` elements of one rank's result."""

    @abstractmethod
    def all_reduce(self, buffer: int, count: int, dtype: int, op: int, stream: int) -> int:
        """Call ncclAllReduce in place."""

    @abstractmethod
    def broadcast(self, buffer: int, nbytes: int, root: int, stream: int) -> int:
        """Call ncclBroadcast in place."""

    @abstractmethod
    def send(self, buffer: int, nbytes: int, peer: int, stream: int) -> int:
        """Call ncclSend."""

    @abstractmethod
    def recv(self, buffer: int, nbytes: int, peer: int, stream: int) -> int:
        """Call ncclRecv."""

    @abstractmethod
    def group_start(self) -> int:
        """Call ncclGroupStart; counts by thread."""

    @abstractmethod
    def group_end(self) -> int:
        """Call ncclGroupEnd."""

    @abstractmethod
    def async_error(self) -> int:
        """What went wrong behind the host's back; never waits, from any thread."""

    @abstractmethod
    def explain(self, code: int) -> str:
        """The library's own words on a result code; empty where it has none."""

    @abstractmethod
    def destroy(self) -> int:
        """Call ncclCommDestroy; may block."""

    @abstractmethod
    def abort(self) -> int:
        """Call ncclCommAbort; stops what runs on the GPU at once, then may block."""
