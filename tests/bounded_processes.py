"""What goes wrong around ranks that are processes over gloo; run on each by `tests.launches`."""

import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommUsageError, DcpCommError
from tests.processes import Report, report
from tests.scenarios import gather

LOST, TURNS, ROUNDS = 1, 20, 3
CHILD_CODE = 5
SHORT_SECONDS = 1.0


def main() -> None:
    """Every topic, the last of which one rank does not survive."""
    comm = dc.init("torch", "cpu", timeout=60)
    for topic in (forked, shared_port, made_again):
        report(topic=topic.__name__, **topic(comm))
        comm.barrier()
    killed(comm)


def forked(comm: Communicator) -> Report:
    """A child is refused and ends as programs end, with all destructors; the parent goes on."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            comm.barrier()
        except CommUsageError:
            comm.close()
            sys.exit(CHILD_CODE)
        sys.exit(1)
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "slots": gather(comm)}


def shared_port(comm: Communicator) -> Report:
    """The application's own process group comes up after ours, on the launcher's port."""
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    with dc.from_process_group(timeout=30) as group:
        slots = gather(group)
    dist.destroy_process_group()
    return {"total": int(total), "slots": slots, "afterwards": gather(comm)}


def made_again(control: Communicator) -> Report:
    """A communicator dies, and the next one of the same name in the same processes works."""
    found, counts = [], []
    for _ in range(ROUNDS):
        with dc.init("torch", "cpu", timeout=SHORT_SECONDS) as comm:
            first = gather(comm)
            control.barrier()
            told = {} if comm.rank == LOST else lonely(comm)
            control.barrier()
            comm.close()
            found.append({"name": comm.name, "first": first, **told})
        time.sleep(1.5 * SHORT_SECONDS)  # until gloo has given up what was abandoned
        counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    return {"found": found, "counts": counts}


def lonely(comm: Communicator) -> Report:
    """How a gather ends that one rank does not make; keeps nothing that the error passed."""
    started = time.monotonic()
    try:
        gather(comm)
    except DcpCommError as error:
        text, kind = f"{error}", type(error).__name__
        return {"error": kind, "text": text, "seconds": time.monotonic() - started}
    return {}


def killed(control: Communicator) -> None:
    """Gather until a rank has killed itself."""
    comm = dc.init("torch", "cpu", timeout=20, name="doomed")
    control.barrier()
    turns = 0
    try:
        while True:
            if turns == TURNS and comm.rank == LOST:
                report(topic="dies")
                os.kill(os.getpid(), signal.SIGKILL)
            gather(comm)
            turns += 1
    except DcpCommError as error:
        report(topic="killed", error=type(error).__name__, text=f"{error}", turns=turns)
    comm.close()
    control.close()


if __name__ == "__main__":
    main()
