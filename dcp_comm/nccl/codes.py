"""What every NCCL backend shares: codes, versions, errors in our words, the unique id's way.

Nothing here loads a library; the numbers are those of ``nccl.h``.
"""

import contextlib
import os
import socket
from collections.abc import Callable

import torch

from dcp_comm import gloo
from dcp_comm.errors import CommMismatch, CommPeerLost, CommTimeout, DcpCommError, refusal
from dcp_comm.rendezvous import Rendezvous

SUCCESS, IN_PROGRESS = 0, 7

BYTES = 1
"""ncclUint8: what only moves travels as bytes, so that every dtype can."""

DTYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
"""ncclDataType_t of the dtypes that can be reduced."""

REDUCTIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
"""ncclRedOp_t."""

UNIQUE_ID_BYTES = 128

Version = tuple[int, int, int]

_MEANINGS: dict[int, tuple[type[DcpCommError], str]] = {
    1: (DcpCommError, "a CUDA call failed"),
    2: (DcpCommError, "a system call failed"),
    3: (DcpCommError, "an internal error"),
    4: (DcpCommError, "an invalid argument"),
    5: (DcpCommError, "an invalid usage"),
    6: (CommPeerLost, "a peer or the network failed"),
    IN_PROGRESS: (CommTimeout, "still in progress"),
    8: (CommTimeout, "timed out"),
}
_LOST = ("closed by", "reset by peer", "broken pipe", "connection refused", "remote process")
_DETAIL_CHARACTERS = 300

_ID, _ID_FAILED = "nccl/id", "nccl/failed"


def parse_version(code: int) -> Version:
    """Read ncclGetVersion's code: 2.9 changed how it is composed."""
    if code < 10_000:
        return code // 1000, code // 100 % 10, code % 100
    return code // 10_000, code // 100 % 100, code % 100


def version_text(version: Version) -> str:
    """Spell a version as ``2.28.9``."""
    return ".".join(map(str, version))


def error(code: int, what: str, detail: str = "") -> DcpCommError:
    """Return the error that a result code stands for; unknown codes become the general one.

    Args:
        code: ncclResult_t, not `SUCCESS`.
        what: The call that gave it.
        detail: ncclGetLastError's words, which tell a lost peer from other failed system calls.
    """
    kind, words = _MEANINGS.get(code, (DcpCommError, "a code that is not known here"))
    if kind is DcpCommError and any(sign in detail.lower() for sign in _LOST):
        kind = CommPeerLost
    told = " ".join(detail.split())[:_DETAIL_CHARACTERS]
    return kind(f"{what}: NCCL result {code}, {words}{': ' if told else ''}{told}")


def exchange_id(rendezvous: Rendezvous, make: Callable[[], bytes]) -> bytes:
    """Have rank 0 make a communicator's unique id and give it to all, as its raw bytes.

    The id is a secret (who holds it can join), so it is never worded in an error or a log, and
    `forget_id` takes it out of the store.

    Args:
        rendezvous: Its store, under a name that only these ranks share, and its deadline.
        make: ncclGetUniqueId; called on rank 0 alone, which must stay alive until all have joined.

    Raises:
        CommTimeout: Rank 0 did not publish an id by the deadline.
        CommPeerLost: Rank 0 failed, and says why; or the store is gone.
        CommMismatch: What the store holds is no unique id.
    """
    try:
        return _publish(rendezvous, make) if rendezvous.rank == 0 else _receive(rendezvous)
    except DcpCommError:
        raise
    except RuntimeError as error:
        raise gloo.translate(error, "exchanging the NCCL id") from error


def forget_id(rendezvous: Rendezvous) -> None:
    """Remove the id once every rank has joined; called on rank 0."""
    with contextlib.suppress(RuntimeError):
        rendezvous.store.delete_key(_ID)


def exclusive_gpu(device: torch.device) -> str:
    """Name a GPU as NCCL tells GPUs apart; two ranks of one communicator may not share a name.

    The host's part is NCCL_HOSTID where that is set. NCCL_MULTI_RANK_GPU_ENABLE=1 lifts the rule
    (NCCL 2.30.3), and makes the name empty.
    """
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        return ""
    host = os.environ.get("NCCL_HOSTID") or socket.gethostname()
    return f"GPU {torch.cuda.get_device_properties(device).uuid} of host {host}"


def _publish(rendezvous: Rendezvous, make: Callable[[], bytes]) -> bytes:
    try:
        unique_id = make()
    except BaseException as error:
        rendezvous.store.set(_ID_FAILED, str(error)[:_DETAIL_CHARACTERS])
        raise
    rendezvous.store.set(_ID, unique_id)  # type: ignore[arg-type]
    return unique_id


def _receive(rendezvous: Rendezvous) -> bytes:
    store, deadline = rendezvous.store, rendezvous.deadline
    if not deadline.poll(lambda: store.check([_ID]) or store.check([_ID_FAILED])):
        raise CommTimeout(f"the NCCL id: rank 0 gave none within {deadline.timeout:g} s")
    if not store.check([_ID]):
        reason = store.get(_ID_FAILED)[:_DETAIL_CHARACTERS].decode(errors="replace")
        raise CommPeerLost(f"the NCCL id: rank 0 could not make one: {reason}")
    unique_id = store.get(_ID)
    if len(unique_id) != UNIQUE_ID_BYTES:
        need = f"{UNIQUE_ID_BYTES} bytes, written by rank 0 alone"
        raise CommMismatch(refusal("init", "NCCL id", f"{len(unique_id)} bytes", need))
    return unique_id
