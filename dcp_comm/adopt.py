"""adopt_nccl: a communicator that an engine already has, instead of a second one's memory."""

import ctypes
import os

import torch
import torch.distributed as dist

from dcp_comm import bootstrap, contract
from dcp_comm.backend import Backend
from dcp_comm.bootstrap import Launch
from dcp_comm.checks import check_int
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Place
from dcp_comm.control import Control, GlooControl, SoloControl
from dcp_comm.deadline import Deadline, seconds
from dcp_comm.errors import (
    CommArgumentError,
    CommTimeout,
    CommUsageError,
    DcpCommError,
    refusal,
)
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.settings import Settings

_TOKEN_BYTES = 8


def adopt_nccl(
    comm_pointer: object,
    rank: int,
    size: int,
    device: torch.device | str | int,
    *,
    timeout: float = 30.0,
    init_timeout: float = 60.0,
    store: dist.Store | None = None,
    library: str | None = None,
) -> Communicator:
    """Make a communicator of an ncclComm_t that the application owns; collective over its ranks.

    It is never destroyed or aborted here, and must live until the result is closed. Its owner's
    calls and these are made in one order on every rank, on one stream or joined by events. Nothing
    is outstanding on it while this runs. ``split`` makes parts that belong to this library.

    Args:
        comm_pointer: The communicator's address as an int or a ``ctypes.c_void_p``; an object whose
            ``comm`` is one of these, such as vLLM's or CuPy's communicators; or a torch process
            group over nccl, where this torch hands out its communicator.
        rank: This rank in it.
        size: Its number of ranks.
        device: The GPU it was made on.
        timeout: Seconds that one call may wait for peers; finite, above 0.
        init_timeout: Seconds that coming up may take in all.
        store: Where its ranks compare notes, shared with nobody who uses the same keys; None for
            the store of torch's default group, else the launcher's.
        library: Path of the libnccl that made it, where the process holds two.

    Raises:
        CommArgumentError: An argument is wrong, or not what NCCL says of the communicator.
        CommUsageError: There is no store to meet at.
        BackendUnavailable: libnccl cannot be used, or this torch keeps its communicators to itself.
        CommTimeout: Not all ranks came.
    """
    settings = Settings.from_environment()
    timeout = seconds(timeout, "adopt_nccl", "timeout")
    deadline = Deadline(seconds(init_timeout, "adopt_nccl", "init_timeout"))
    check_int("adopt_nccl", "size", size, 1)
    check_int("adopt_nccl", "rank", rank, 0, size - 1)
    where = _gpu(device)
    backend = _wrap(address_of(comm_pointer, where), rank, size, where, timeout, library)
    try:
        return _meet(backend, store, timeout, deadline, settings)
    except BaseException:
        backend.abort()
        raise


def address_of(comm_pointer: object, device: torch.device) -> int:
    """Return the address of an ncclComm_t, whichever way it was given.

    Raises:
        CommArgumentError: It is none of the forms that `adopt_nccl` takes, or null.
        BackendUnavailable: This torch keeps its communicators to itself.
    """
    given = comm_pointer
    if isinstance(given, dist.ProcessGroup):
        given = given._get_backend(device)
    of_torch = getattr(given, "_comm_ptr", None)
    if of_torch is not None:
        given = of_torch()
    given = getattr(given, "comm", given)
    if isinstance(given, ctypes.c_void_p):
        given = given.value or 0
    if isinstance(given, bool) or not isinstance(given, int):
        need = "an address, a c_void_p, an object with .comm, or a torch group over nccl"
        remedy = "A torch that hands out its communicator has ProcessGroupNCCL._comm_ptr"
        raise _refused("comm_pointer", type(comm_pointer).__name__, need, remedy)
    if given <= 0:
        remedy = "Communicators are often made late: make one call on it first"
        raise _refused("comm_pointer", "a null address", "a live communicator", remedy)
    return given


def _wrap(
    address: int, rank: int, size: int, device: torch.device, timeout: float, library: str | None
) -> Backend:
    """Ask NCCL who this is, and refuse if that is not what the caller said."""
    from dcp_comm.backends.pynccl import PyNcclBackend, PyNcclHandle
    from dcp_comm.nccl.functions import Functions

    nccl = Functions.load(library)
    for argument, said, function in (
        ("size", size, "ncclCommCount"),
        ("rank", rank, "ncclCommUserRank"),
        ("device", device.index, "ncclCommCuDevice"),
    ):
        found = nccl.read(function, address)
        if found != said:
            raise _refused(argument, said, f"{found}, as NCCL says of this communicator")
    handle = PyNcclHandle(nccl, address, None)
    return PyNcclBackend(handle, rank, size, device, timeout, owned=False)


def _meet(
    backend: Backend,
    store: dist.Store | None,
    timeout: float,
    deadline: Deadline,
    settings: Settings,
) -> Communicator:
    """Find the other ranks under a name that only they can know: one that travelled over NCCL."""
    rank, size, device = backend.rank, backend.size, backend.device
    alone = size == 1
    place = dist.HashStore() if alone else _store(store, deadline)
    name = f"adopted/{_token(backend, deadline)}"
    corner = dist.PrefixStore(name, place)
    meeting = Rendezvous(rank, size, corner, name, device, timeout, deadline)
    control: Control = SoloControl() if alone else GlooControl.connect(meeting)
    try:
        comm = Communicator(backend, control, meeting, settings)
        comm.verify_order()
    except BaseException:
        control.close()
        raise
    return comm


def _token(backend: Backend, deadline: Deadline) -> str:
    """Have rank 0 draw a name and broadcast it over the communicator itself."""
    device = backend.device
    words = torch.frombuffer(bytearray(os.urandom(_TOKEN_BYTES)), dtype=torch.uint8).to(device)
    call = contract.broadcast(words, 0, Place(backend.rank, backend.size, device, backend.name))
    stream = torch.cuda.current_stream(device)
    backend.issue([call], stream, deadline)
    if not deadline.poll(stream.record_event().query):
        raise CommTimeout(
            f"adopt_nccl: peers did not come within {deadline.timeout:g} s: every rank of the "
            "communicator adopts it"
        )
    backend.check()
    return bytes(words.tolist()).hex()


def _store(store: dist.Store | None, deadline: Deadline) -> dist.Store:
    if store is not None:
        return dist.PrefixStore("dcp_comm", store)
    if dist.group.WORLD is not None:
        return bootstrap.group_store(dist.group.WORLD)
    try:
        return bootstrap.open_store(Launch.from_environment(), deadline)
    except DcpCommError as error:
        raise CommUsageError(
            f"adopt_nccl: store: got None, need one, for there is no torch.distributed to ask and "
            f"no launcher's either ({error})"
        ) from error


def _gpu(device: torch.device | str | int) -> torch.device:
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type != "cuda":
        raise _refused("device", found, "the GPU of the communicator")
    index = torch.cuda.current_device() if found.index is None else found.index
    return torch.device("cuda", index)


def _refused(argument: str, got: object, need: str, remedy: str = "") -> CommArgumentError:
    return CommArgumentError(refusal("adopt_nccl", argument, got, need, remedy=remedy))
