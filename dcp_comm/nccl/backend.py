"""NcclBackend: checked calls on one NCCL communicator, whichever binding holds it.

1. Rank 0's unique id travels over the rendezvous' store; every rank then joins in a daemon thread
   under the deadline. The communicator is a blocking one: a call on a non-blocking one costs three
   to four times as much on the host.
2. Calls go on the given stream and return. What only moves travels as bytes.
3. A thread of its own watches (`dcp_comm.nccl.watch.Watch`): a lost peer or a call that does not
   finish within the timeout aborts the communicator, which sets waiting streams free, and the next
   call, or `check`, raises. Replays of CUDA graphs are not calls: there it notices lost peers, but
   not peers that are late.
4. `close` and `abort` return in time even while a captured CUDA graph holds the communicator.
5. Kernels of two communicators on one GPU (this one and torch's, or two of these) wait for their
   peers and keep the GPU from one another while they do. Their calls, and replays of graphs that
   hold them, go in one order on every rank, on one stream or on streams joined by events.
"""

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Generic, Self, TypedDict, TypeVar

import torch

from dcp_comm.backend import Backend, Capabilities
from dcp_comm.contract import Call, Place
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommClosed, CommPeerLost, CommTimeout
from dcp_comm.nccl import codes
from dcp_comm.nccl.codes import DTYPES, IN_PROGRESS, REDUCTIONS, SUCCESS, Version
from dcp_comm.nccl.handle import Handle
from dcp_comm.nccl.life import Ending, run_on_device
from dcp_comm.nccl.watch import Watch
from dcp_comm.processes import Processes
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.roll import Roll

_logger = logging.getLogger("dcp_comm")

H = TypeVar("H", bound=Handle)

_ABORT_GRACE_SECONDS = 1.0
_CLOSE_SHARE = 0.8


class NcclBackend(Backend, Generic[H]):
    """One NCCL communicator behind the rules of `Backend`.

    Args:
        handle: The communicator.
        rank: This rank in it.
        size: Its number of ranks.
        device: Its GPU.
        timeout: Seconds that one call may take.
        owned: Whether it ends with this backend; an application's own never does.
        shares: Whether relatives use its resources, so that aborting it would end them too.
        processes: What `dcp_comm.processes.own_process` says on each rank, if known.
        roll: Where ranks leave word, so that the watch can name who is missing; None for nowhere.
        group: The communicator's name, for the watch's log.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(devices=("cuda",), capturable=True)

    def __init__(
        self,
        handle: H,
        rank: int,
        size: int,
        device: torch.device,
        timeout: float,
        *,
        owned: bool = True,
        shares: bool = False,
        processes: Sequence[str] = (),
        roll: Roll | None = None,
        group: str = "",
    ) -> None:
        super().__init__(rank, size, device)
        self._handle: H | None = handle
        self.timeout, self.shares, self._owned = timeout, shares, owned
        self._captured = False
        others = Processes(processes, rank)
        where = f"{Place(rank, size, device, self.name)}, communicator {group!r}"
        self._watch = Watch(handle, others, device, timeout, self._give_up, roll, where)
        self._ending = Ending(handle, device, self._watch.is_quiet)
        self._unended = threading.Lock()

    @classmethod
    def unavailable(cls) -> str:
        """Say so when torch sees no GPU, or the binding cannot be used."""
        if not torch.cuda.is_available():
            return "torch sees no CUDA device"
        return cls._missing()

    @classmethod
    def library(cls, device: torch.device) -> str:
        """NCCL's version, which must be the same on every rank."""
        return f"NCCL {codes.version_text(cls._version())}"

    @classmethod
    def exclusive(cls, device: torch.device) -> str:
        """NCCL takes one rank a GPU."""
        return codes.exclusive_gpu(device)

    @classmethod
    def connect(cls, rendezvous: Rendezvous) -> Self:
        """Exchange the unique id, then join."""
        unique_id = codes.exchange_id(rendezvous, cls._make_id)
        rank, size, device = rendezvous.rank, rendezvous.size, rendezvous.device
        try:
            handle = run_on_device(
                lambda: cls._join(unique_id, rendezvous),
                device,
                rendezvous.deadline,
                f"creating the NCCL communicator {rendezvous.name!r}",
            )
        finally:
            if rank == 0:
                codes.forget_id(rendezvous)
        return cls(handle, rank, size, device, rendezvous.timeout, **known(rendezvous))

    @classmethod
    @abstractmethod
    def _missing(cls) -> str:
        """Why the binding cannot be used; empty if it can."""

    @classmethod
    @abstractmethod
    def _version(cls) -> Version:
        """The loaded library's."""

    @classmethod
    @abstractmethod
    def _make_id(cls) -> bytes:
        """Call ncclGetUniqueId."""

    @classmethod
    @abstractmethod
    def _join(cls, unique_id: bytes, rendezvous: Rendezvous) -> H:
        """Call ncclCommInitRankConfig or its like; blocks until all ranks have come."""

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        """Enqueue on the stream; several calls, and an all-to-all of pairs, as one group."""
        alone = len(calls) == 1
        what = calls[0].op if alone else " + ".join(call.op for call in calls)
        counts = calls[0].collective if alone else any(call.collective for call in calls)
        self._watch.enter(stream, what, counts=counts)
        try:
            handle = self._require_handle()
            code = self._launch(handle, calls, 0 if stream is None else stream.cuda_stream)
            if code == IN_PROGRESS:
                code = _settled(handle, deadline)
        finally:
            self._watch.leave(stream)
        if code != SUCCESS:
            raise codes.error(code, what, handle.explain(code))
        if not self._captured:
            self._captured = torch.cuda.is_current_stream_capturing()

    def check(self) -> None:
        """Ask NCCL for its asynchronous error."""
        handle = self._require_handle()
        self._watch.check()
        code = handle.async_error()
        if code not in (SUCCESS, IN_PROGRESS):
            raise codes.error(code, "check", handle.explain(code))

    def abort(self) -> None:
        """Abort in the background; a communicator that shares resources only if work is stuck."""
        if self._release():
            self._ending.begin(self._watch.is_idle(), _ABORT_GRACE_SECONDS if self.shares else 0.0)

    def close(self, deadline: Deadline) -> None:
        """Destroy what is ours once its work is done, abort it if that does not end in time.

        Raises:
            CommTimeout: NCCL has not let go by the deadline, mostly because a captured CUDA graph
                still holds the communicator; a daemon thread waits on.
        """
        if not self._release():
            return
        self._ending.begin(self._watch.is_idle(), _CLOSE_SHARE * deadline.remaining())
        if not self._ending.wait(deadline):
            raise CommTimeout(f"close: NCCL holds on after {deadline.timeout:g} s: {self._holder}")
        if self._ending.aborted:
            _logger.warning("close: work was stuck on the GPU and was aborted")

    @property
    def _holder(self) -> str:
        if self._captured:
            return (
                "calls were captured, and a CUDA graph that holds them is alive. Delete it; the "
                "communicator is kept until then"
            )
        return "work is stuck on the GPU; the communicator is kept until NCCL lets go"

    def _release(self) -> bool:
        """Stop using the handle; True once, if there is something of ours to end."""
        self._handle = None
        self._watch.stop()
        return self._owned and self._unended.acquire(blocking=False)

    def _give_up(self) -> None:
        """What the watch does on a failure: set free the streams that wait for a peer.

        A peer that has ended may have left work that only needs a moment more.
        """
        self._handle = None
        if self._owned and self._unended.acquire(blocking=False):
            moment = isinstance(self._watch.failure, CommPeerLost) or self.shares
            is_idle = self._watch.is_idle() if self.shares else lambda: False
            self._ending.begin(is_idle, _ABORT_GRACE_SECONDS if moment else 0.0)

    def _require_handle(self) -> H:
        self._watch.check()
        if self._handle is None:
            raise CommClosed(f"{self.name}: the communicator was dropped by close or abort")
        return self._handle

    def _launch(self, handle: Handle, calls: Sequence[Call], stream: int) -> int:
        if len(calls) == 1 and (handle.exchanges or calls[0].op != "all_to_all_into"):
            return self._start(handle, calls[0], stream)
        codes = [handle.group_start()]
        try:
            codes += [self._start(handle, call, stream) for call in calls]
        finally:
            codes.append(handle.group_end())
        return _worst(codes)

    def _start(self, handle: Handle, call: Call, stream: int) -> int:
        send, recv, nbytes = call.input.data_ptr(), call.output.data_ptr(), call.nbytes
        match call.op:
            case "all_gather_into":
                return handle.all_gather(send, recv, nbytes, stream)
            case "all_to_all_into":
                return self._exchange(handle, send, recv, nbytes // self.size, stream)
            case "broadcast":
                return handle.broadcast(recv, nbytes, call.peer, stream)
            case "send":
                return handle.send(send, nbytes, call.peer, stream)
            case "recv":
                return handle.recv(recv, nbytes, call.peer, stream)
        count, dtype, op = call.payload.numel(), DTYPES[call.output.dtype], REDUCTIONS[call.reduce]
        if call.op == "all_reduce":
            return handle.all_reduce(recv, count, dtype, op, stream)
        return handle.reduce_scatter(send, recv, count, dtype, op, stream)

    def _exchange(self, handle: Handle, send: int, recv: int, block: int, stream: int) -> int:
        if handle.exchanges:
            return handle.all_to_all(send, recv, block, stream)
        codes = []
        for peer in range(self.size):
            codes.append(handle.send(send + peer * block, block, peer, stream))
            codes.append(handle.recv(recv + peer * block, block, peer, stream))
        return _worst(codes)


class Known(TypedDict):
    """What a rendezvous tells a watch."""

    processes: tuple[str, ...]
    roll: Roll
    group: str


def known(rendezvous: Rendezvous) -> Known:
    """Return what the watch of a communicator that came up at a rendezvous can know."""
    roll = Roll.at(rendezvous, "gpu")
    return {"processes": rendezvous.processes, "roll": roll, "group": rendezvous.name}


def _settled(handle: Handle, deadline: Deadline) -> int:
    """Poll a non-blocking communicator, which only an application can hand us, until it is done."""
    done = deadline.poll(lambda: handle.async_error() != IN_PROGRESS)
    return handle.async_error() if done else IN_PROGRESS


def _worst(codes: Iterable[int]) -> int:
    return max(codes, key=lambda code: (code not in (SUCCESS, IN_PROGRESS), code))
