"""torch's gloo, made bounded: groups from a store, polling waits, errors in our words.

Shared by the control plane and the torch backend. Groups made here stand outside torch's registry:
no ``init_process_group``, nothing global.
"""

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from dcp_comm import exits
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.rendezvous import Rendezvous

_GRACE_SECONDS = 1.0
_NAP_SECONDS = 0.05
_LOST = (
    "closed by peer",
    "reset by peer",
    "broken pipe",
    "connection refused",
    "pair closure",
    "socket closed",
    "connection closed",
    "failed to recv",
    "failed to send",
)
_NOISE = re.compile(r"^\[[^\]]*\.(cc|cpp|h):\d+\]\s*|\. This is typically.*$")
_LATE = ("timed out", "timeout")


def connect(rendezvous: Rendezvous, purpose: str) -> dist.ProcessGroup:
    """Connect the ranks of a rendezvous and return their group.

    Gloo's own timeout for calls lies a second behind the rendezvous': ours speaks first, and gloo
    then closes the connections of what was abandoned, so that a late peer learns of it.

    Args:
        rendezvous: The ranks, their store, the deadline.
        purpose: Keeps the keys of several groups over one store apart.

    Raises:
        CommTimeout: Not all ranks had connected by the deadline.
        CommPeerLost: The store or a peer went away.
    """
    rank, size = rendezvous.rank, rendezvous.size
    store = dist.PrefixStore(purpose, rendezvous.store)
    patience = timedelta(seconds=min(rendezvous.timeout + _GRACE_SECONDS, 86_400.0))
    what = f"connecting gloo for {purpose}"

    def join() -> dist.ProcessGroupGloo:
        joined = dist.ProcessGroupGloo(store, rank, size, rendezvous.deadline.native())
        joined._set_default_timeout(patience)
        return joined

    try:
        backend = rendezvous.deadline.run(join, what)
    except DcpCommError:
        raise
    except RuntimeError as error:
        raise translate(error, what) from error
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return exits.never_destroyed_in_children(group)


def finish(work: dist.Work, deadline: Deadline, what: str) -> None:
    """Wait for a collective's work by polling, then raise its error if it has one.

    Raises:
        CommTimeout: The deadline passed first.
        CommPeerLost: A peer closed its connection.
    """
    if not deadline.poll(work.is_completed):
        raise CommTimeout(f"{what}: peers did not arrive within {deadline.timeout:g} s")
    try:
        work.wait()
    except RuntimeError as error:
        raise translate(error, what) from error


@contextmanager
def outliving(group: dist.ProcessGroup, works: Sequence[dist.Work]) -> Iterator[None]:
    """Wait for works in the body; if that fails, keep their group until they are over.

    A gloo group's destructor waits for its works, so whoever lets go of it last would hang until
    gloo's own timeout ends them. That will be a daemon thread, and one that polls, so that it need
    not be waited for in C++ when the process ends.
    """
    try:
        yield
    except BaseException:
        exits.start_daemon(partial(_outlive, works, group), "outliving gloo")
        raise


def translate(error: BaseException, what: str) -> DcpCommError:
    """Turn an error of torch.distributed into the kind of ours that it stands for."""
    text = _NOISE.sub("", str(error).split("\n", 1)[0])
    words = text.lower()
    if any(sign in words for sign in _LOST):
        return CommPeerLost(f"{what}: a peer is gone: {text}")
    if any(sign in words for sign in _LATE):
        return CommTimeout(f"{what}: {text}")
    return DcpCommError(f"{what}: {text}")


def _outlive(works: Sequence[dist.Work], group: dist.ProcessGroup) -> None:
    """Hold the group until its works are over, or for good if the process ends before."""
    while not all(work.is_completed() for work in works):
        if exits.has_begun():
            for found in (group, *works):
                exits.never_destroy(found)
            return
        time.sleep(_NAP_SECONDS)
