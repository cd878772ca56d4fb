"""What ranks do in tests of real processes; run by `tests.processes`."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from tests.processes import Report, report

LATE_SECONDS = 0.7


def gather(comm: Communicator, count: int = 3) -> list[int]:
    """One gather of this rank's number; what came."""
    slots = torch.full((comm.size, count), -1)
    comm.all_gather_into(slots, torch.full((count,), comm.rank))
    return [int(rank) for rank in slots[:, 0]]


def failure(call: Callable[[], object]) -> Report:
    """How a call fails, and how long that takes."""
    started = time.monotonic()
    try:
        found: object = call()
    except BaseException as error:
        found = error
    took = time.monotonic() - started
    return {"error": type(found).__name__, "text": f"{found}", "seconds": took}


def later(seconds: float, call: Callable[[], Any]) -> threading.Thread:
    """Run a call in a thread after some time."""
    thread = threading.Timer(seconds, call)
    thread.daemon = True
    thread.start()
    return thread


@contextmanager
def part_of(comm: Communicator) -> Iterator[Communicator]:
    """All ranks once more, to be broken."""
    part = comm.split(0)
    assert part is not None
    try:
        yield part
    finally:
        part.close()


def life() -> None:
    """Every topic on a communicator of its own over one launch, then an end without close."""
    unpickled: list[str] = []
    sys.addaudithook(
        lambda event, arguments: unpickled.append(event) if "pickle" in event else None
    )
    comm = dc.init("torch", "cpu", timeout=20)
    for topic in TOPICS:
        with part_of(comm) as part:
            report(topic=topic.__name__, **topic(part))
        comm.barrier()
    report(topic="security", unpickled=unpickled, listeners=listeners())
    report(topic="second_launch", **second_launch(comm))


def mismatches(comm: Communicator) -> Report:
    """Calls that differ between the ranks."""
    odd, found = comm.rank == 1, {}
    for name, call in MISMATCHES.items():
        with part_of(comm) as part:
            output = torch.full((4 * part.size,), 7.0)
            first = failure(partial(call, part, output, odd))
            again = failure(partial(gather, part))
            untouched = bool((output == 7).all())
            found[name] = {**first, "again": again["error"], "untouched": untouched}
    return {"found": found}


MISMATCHES: dict[str, Callable[[Communicator, torch.Tensor, bool], object]] = {
    "count": lambda c, o, odd: c.all_gather_into(o[: 4 if odd else 8], torch.ones(4 - 2 * odd)),
    "dtype": lambda c, o, odd: c.all_gather_into(
        o.view(torch.int32 if odd else torch.float32),
        torch.ones(4, dtype=torch.int32 if odd else torch.float32),
    ),
    "operation": lambda c, o, odd: c.broadcast(o, 0) if odd else c.all_reduce(o),
    "reduction": lambda c, o, odd: c.all_reduce(o, "max" if odd else "sum"),
    "root": lambda c, o, odd: c.broadcast(o, int(odd)),
    "order": lambda c, o, odd: (
        c.all_to_all_into(o, o.clone()) if odd else c.all_gather_into(o, torch.ones(4))
    ),
    "barrier": lambda c, o, odd: c.barrier() if odd else c.all_reduce(o),
    "group": lambda c, o, odd: grouped(c, o, twice=odd),
}


def grouped(comm: Communicator, output: torch.Tensor, *, twice: bool) -> None:
    """A group of one or two calls."""
    with comm.group():
        comm.all_reduce(output)
        if twice:
            comm.all_reduce(output)


def raising(comm: Communicator) -> Report:
    """Rank 1 raises between two calls; its own error stays its own."""

    def work() -> None:
        with comm:
            gather(comm)
            if comm.rank == 1:
                raise MemoryError("mine")
            gather(comm)

    return failure(work)


def signals(comm: Communicator) -> Report:
    """A handler runs while this rank waits for a late one, and the wait goes on."""
    handled: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: handled.append(time.monotonic()))
    comm.barrier()
    started = time.monotonic()
    if comm.rank == 1:
        time.sleep(LATE_SECONDS)
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
    slots = gather(comm)
    took = time.monotonic() - started
    signal.signal(signal.SIGALRM, before)
    return {"slots": slots, "took": took, "handled": [at - started for at in handled]}


def interrupt(comm: Communicator) -> Report:
    """Ctrl-C while waiting: out at once, dead, closed in no time; the peer learns of it."""
    comm.barrier()
    if comm.rank == 0:
        later(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    else:
        time.sleep(LATE_SECONDS)
    first = failure(lambda: gather(comm))
    return {**first, "again": failure(lambda: gather(comm)), "close": failure(comm.close)}


def two_threads(comm: Communicator) -> Report:
    """While one thread waits inside a call, another is refused, and the first gets its data."""
    refused: list[Report] = []
    comm.barrier()
    if comm.rank == 1:
        time.sleep(LATE_SECONDS)
    else:
        later(0.2, lambda: refused.append(failure(lambda: gather(comm))))
    slots = gather(comm)
    return {"slots": slots, "refused": refused, "afterwards": gather(comm)}


def threads_in_turn(comm: Communicator) -> Report:
    """A thread of its own may take over."""
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(gather(comm)))
    thread.start()
    thread.join()
    return {"slots": found}


def forked(comm: Communicator) -> Report:
    """A child process is refused and ends; the parent goes on."""
    child = os.fork()
    if child == 0:
        refused = failure(comm.barrier)
        comm.close()
        os._exit(10 if refused["error"] == "CommUsageError" and "fork" in refused["text"] else 11)
    started = time.monotonic()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "seconds": time.monotonic() - started, "slots": gather(comm)}


def closed_by_a_thread(comm: Communicator) -> Report:
    """Closing from elsewhere wakes the waiter; closing in two threads and twice is fine."""
    closes: list[Report] = []
    comm.barrier()
    if comm.rank == 0:
        threads = [later(0.2, lambda: closes.append(failure(comm.close))) for _ in range(2)]
        waited = failure(lambda: gather(comm))
        for thread in threads:
            thread.join()
    else:
        time.sleep(LATE_SECONDS)
        waited = failure(lambda: gather(comm))
    closes.append(failure(comm.close))
    return {**waited, "closes": closes, "again": failure(lambda: gather(comm))}


TOPICS = (
    mismatches,
    raising,
    signals,
    interrupt,
    two_threads,
    threads_in_turn,
    forked,
    closed_by_a_thread,
)


def second_launch(first: Communicator) -> Report:
    """Two communicators of one launch work side by side; each ends for itself; timeouts bite."""
    second = dc.init("torch", "cpu", timeout=1.5)
    both = [gather(first), gather(second), gather(first)]
    names = [first.name, second.name]
    first.close()
    first.close()
    closed = failure(lambda: gather(first))
    alone = gather(second)
    if second.rank == 1:
        time.sleep(2.5)
    late = failure(lambda: gather(second))
    third = dc.init("torch", "cpu", timeout=1e8)
    return {
        "both": both,
        "names": names,
        "closed": closed,
        "alone": alone,
        "late": late,
        "again": failure(lambda: gather(second)),
        "third": gather(third),
    }


def listeners() -> list[str]:
    """Local addresses on which this process listens, as /proc/net words them."""
    inodes = set()
    for entry in os.scandir("/proc/self/fd"):
        target = os.readlink(entry.path) if os.path.islink(entry.path) else ""
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                cells = line.split()
                if cells[3] == "0A" and cells[9] in inodes:
                    found.append(cells[1])
    return found


def torchrun() -> None:
    """What an application does under torchrun, with and without a process group of its own."""
    world = dc.init()
    dist.init_process_group("gloo")
    group = dc.from_process_group()
    new_group: Any = dist.new_group
    backwards = dc.from_process_group(new_group([1, 0]))
    solo = new_group([0])
    found: Report = {
        "world": gather(world),
        "group": gather(group),
        "backwards": (backwards.rank, gather(backwards)),
        "where": world.where,
    }
    if dist.get_rank() == 0:
        with dc.from_process_group(solo) as alone:
            found["solo"] = gather(alone)
    else:
        found["outsider"] = failure(lambda: dc.from_process_group(solo))
    group.close()
    backwards.close()
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    dist.destroy_process_group()
    report(topic="torchrun", **found, total=int(total), afterwards=gather(world))
