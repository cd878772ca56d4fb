"""From a launch to a meeting point: the torchrun environment, or a process group, to a Rendezvous.

Nothing here opens a wildcard listener, reads a pickle, or trusts the length of what a store holds.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from dcp_comm import agreement
from dcp_comm.agreement import Fields
from dcp_comm.deadline import Deadline
from dcp_comm.errors import (
    CommMismatch,
    CommPeerLost,
    CommTimeout,
    CommUsageError,
    DcpCommError,
    refusal,
)
from dcp_comm.exits import never_destroyed_in_children
from dcp_comm.rendezvous import Rendezvous

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_POLL_SECONDS = 5e-3
_FAILED = "failed"
_GRACE_SECONDS = 0.5

T = TypeVar("T")

# A process can bind a port once, and peers may look for a later communicator before rank 0 gets to
# it: so all communicators of a launch share one store, for as long as the process lives.
_served: dict[tuple[str, int], dist.Store] = {}


@dataclass(frozen=True)
class Launch:
    """What a launcher such as torchrun says of this process."""

    rank: int
    size: int
    local_rank: int
    address: str
    port: int
    run: str
    agent_store: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Launch":
        """Read the variables that torchrun sets.

        Raises:
            CommUsageError: One is missing, no number, or out of range.
        """
        missing = [name for name in _NEEDED if not environment.get(name)]
        if missing:
            raise CommUsageError(
                f"init: {', '.join(missing)} not set: this process was not started by a launcher. "
                "Start it with torchrun --nproc-per-node N, or try it in one process with "
                "dcp_comm.testing.run_ranks(fn, N)"
            )
        size = _number(environment, "WORLD_SIZE", 1, 2**31)
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return cls(
            rank=_number(environment, "RANK", 0, size),
            size=size,
            local_rank=_number(environment, "LOCAL_RANK", 0, 2**31),
            address=environment["MASTER_ADDR"],
            port=_number(environment, "MASTER_PORT", 1, 2**16),
            run=f"{environment.get('TORCHELASTIC_RUN_ID', 'none')}/{restart}",
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )

    def device(self) -> torch.device:
        """The local rank's GPU, else the CPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())


def open_store(launch: Launch, deadline: Deadline) -> dist.Store:
    """Connect to the launcher's store, or let rank 0 serve one on MASTER_ADDR alone.

    Raises:
        CommUsageError: Rank 0 cannot listen on MASTER_ADDR:MASTER_PORT.
        CommTimeout: Nothing answered there by the deadline.
    """
    serves = launch.rank == 0 and not launch.agent_store
    key = (launch.address, launch.port)
    store = _served.get(key) if serves else None
    if store is None:
        listener = _listen(launch) if serves else None
        store = _tcp_store(launch, listener, deadline)
        if serves:
            _served[key] = store
    return dist.PrefixStore(f"dcp_comm/{launch.run}", store)


def group_store(group: dist.ProcessGroup) -> dist.Store:
    """The store over which an application's process group came up."""
    return dist.PrefixStore("dcp_comm", group.get_group_store())


def enter(store: dist.Store, name: str, rank: int, deadline: Deadline) -> tuple[dist.Store, str]:
    """Return a fresh corner of the store and its name; the n-th entry under a name is its epoch.

    The count is kept in the store, a rank its own, so that it outlives this process.

    Raises:
        CommTimeout: The store did not answer by the deadline.
        CommPeerLost: The store went away.
    """
    what = "entering the store"
    epoch = deadline.run(
        lambda: _guarded(lambda: store.add(f"{name}/epoch/{rank}", 1), what), f"init: {what}"
    )
    epoch_name = name if epoch == 1 else f"{name}.{epoch}"
    return dist.PrefixStore(epoch_name, store), epoch_name


def meet(rendezvous: Rendezvous, stage: str, fields: Mapping[str, object]) -> list[Fields]:
    """All-gather one record a rank over the store, before any connection between ranks exists.

    Args:
        rendezvous: Where to meet; its deadline bounds the wait.
        stage: Which of the meetings of one start-up this is.
        fields: This rank's; rank and world size are added, and checked as they come in.

    Raises:
        CommTimeout: Says how many of the ranks had joined, and which had not.
        CommMismatch: Two ranks claim one place, or world sizes or fields differ; on every rank that
            came.
        CommPeerLost: The store went away.
    """
    # A store whose host is frozen blocks inside torch, past any timeout of its own.
    bound = Deadline(rendezvous.deadline.remaining() + _GRACE_SECONDS)
    return bound.run(lambda: _meet(rendezvous, stage, fields), f"init: meeting for {stage}")


def _meet(rendezvous: Rendezvous, stage: str, fields: Mapping[str, object]) -> list[Fields]:
    rank, size, store = rendezvous.rank, rendezvous.size, rendezvous.store
    token = os.urandom(8).hex()
    own = agreement.encode({"rank": rank, "size": size, **fields, "token": token})
    _claim(store, f"{stage}/{rank}", own, rank)
    ranks = _collect(rendezvous, stage)
    for other, found in enumerate(ranks):
        if found.keys() != ranks[rank].keys():
            need = f"{', '.join(ranks[rank])}, as rank {rank} has"
            remedy = "Install the same version of dcp_comm everywhere"
            raise CommMismatch(
                refusal("init", f"rank {other}'s record", ", ".join(found), need, remedy=remedy)
            )
    return ranks


def tell(rendezvous: Rendezvous, error: BaseException) -> None:
    """Leave word for ranks that are still in `meet` that this one gave up, and why."""
    text = f"{error}" if isinstance(error, CommMismatch) else f"rank {rendezvous.rank}: {error!r}"
    with contextlib.suppress(RuntimeError):
        Deadline(_GRACE_SECONDS).run(
            lambda: rendezvous.store.set(_FAILED, text[:1000]), "telling the others"
        )


def _number(environment: Mapping[str, str], name: str, least: int, below: int) -> int:
    text = environment[name]
    if not text.isdecimal() or not least <= int(text) < below:
        need = f"a whole number from {least} to {below - 1}"
        raise CommUsageError(refusal("init", name, repr(text), need))
    return int(text)


def _listen(launch: Launch) -> int:
    """Bind MASTER_ADDR itself: a store left to listen by itself takes every interface."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            launch.address, launch.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise CommUsageError(
            f"init: MASTER_ADDR:MASTER_PORT: rank 0 cannot listen on {launch.address}:"
            f"{launch.port}: {error}. Choose a free port on an address of rank 0's host; where "
            "torch.distributed is initialised already, use from_process_group"
        ) from error
    return listener.detach()


def _tcp_store(launch: Launch, listener: int | None, deadline: Deadline) -> dist.Store:
    def connect() -> dist.Store:
        store = dist.TCPStore(
            launch.address,
            launch.port,
            is_master=listener is not None,
            timeout=deadline.native(),
            wait_for_workers=False,
            # So that init_process_group on the same port finds this server instead of failing.
            multi_tenant=True,
            master_listen_fd=listener,
        )
        return never_destroyed_in_children(store)

    where = f"{launch.address}:{launch.port}"
    try:
        return deadline.run(connect, f"connecting to the store at {where}")
    except (RuntimeError, ValueError) as error:
        raise CommTimeout(
            f"init: no store answered at {where} within {deadline.timeout:g} s "
            f"(0 of {launch.size} ranks seen, rank {launch.rank} waiting): rank 0 may never have "
            f"started, or something else listens there: {str(error).splitlines()[0]}"
        ) from error


def _claim(store: dist.Store, key: str, own: bytes, rank: int) -> None:
    text = own.rstrip(b"\0").decode()
    found = _guarded(lambda: store.compare_set(key, "", text), "joining")
    if found != text.encode():
        raise CommMismatch(
            f"init: rank {rank} is claimed twice: another process holds {key!r}. Give every "
            "process its own RANK"
        )


def _collect(rendezvous: Rendezvous, stage: str) -> list[Fields]:
    """Poll the store for every rank's record, looking at each as soon as it is there."""
    store, size = rendezvous.store, rendezvous.size
    joined: dict[int, Fields] = {}
    while True:
        for rank in set(range(size)) - set(joined):
            if _has(store, f"{stage}/{rank}"):
                joined[rank] = _read(store, f"{stage}/{rank}", rank, size)
        if len(joined) == size:
            return [joined[rank] for rank in range(size)]
        if _has(store, _FAILED):
            raise CommMismatch(store.get(_FAILED)[:1000].decode(errors="replace"))
        if rendezvous.deadline.expired():
            missing = ", ".join(str(r) for r in range(size) if r not in joined)
            raise CommTimeout(
                f"init: {len(joined)}/{size} ranks joined {rendezvous.name!r} within "
                f"{rendezvous.deadline.timeout:g} s; missing: {missing} (rank {rendezvous.rank} of "
                f"{size}). Look for why they did not start"
            )
        time.sleep(_POLL_SECONDS)


def _has(store: dist.Store, key: str) -> bool:
    return _guarded(lambda: store.check([key]), "joining")


def _read(store: dist.Store, key: str, rank: int, size: int) -> Fields:
    raw = _guarded(lambda: store.get(key), "joining")
    fields = agreement.decode(raw.ljust(agreement.RECORD_BYTES, b"\0"), rank)
    if fields.get("rank") != str(rank) or fields.get("size") != str(size):
        raise CommMismatch(
            f"init: the process at place {rank} says it is rank {fields.get('rank')} of "
            f"{fields.get('size')}, here the world size is {size}. Use one launcher for all ranks"
        )
    return fields


def _guarded(call: Callable[[], T], what: str) -> T:
    try:
        return call()
    except DcpCommError:
        raise
    except (RuntimeError, ValueError) as error:
        raise CommPeerLost(
            f"init: {what}: the store failed: {str(error).splitlines()[0]}"
        ) from error
