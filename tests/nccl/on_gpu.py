"""Ranks as processes that share a GPU: ``python -m tests.nccl.on_gpu SCENARIO BACKEND``."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from dcp_comm.errors import DcpCommError
from dcp_comm.registry import load
from tests.nccl.parts import PARTS, merges_are_exact
from tests.nccl.workloads import ROWS, Calls, Merges, captured
from tests.processes import Process, Report, free_port, launcher_variables, report

TIMEOUT, INIT_TIMEOUT = 6.0, 15.0


def shared_gpu(rank: int) -> dict[str, str]:
    """What makes NCCL take every rank for a host of its own, all on the first GPU."""
    return {
        "LOCAL_RANK": "0",
        "NCCL_HOSTID": f"rank-{rank}",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
    }


def with_headers(rank: int) -> dict[str, str]:
    """A shared GPU, and merges that are compared."""
    return {**shared_gpu(rank), "DCP_COMM_CHECK": "merge"}


def own_gpu(rank: int) -> dict[str, str]:
    """One GPU a rank, as in production."""
    return {"LOCAL_RANK": f"{rank}"}


@contextmanager
def ranks(
    scenario: str,
    backend: str,
    size: int,
    environment: Callable[[int], dict[str, str]] = shared_gpu,
) -> Iterator[list[Process]]:
    """Start every rank of a scenario, as in production; kill what is left at the end."""
    port = free_port()
    command = [sys.executable, "-m", "tests.nccl.on_gpu", scenario, backend]
    started = [
        Process(
            command,
            {**launcher_variables(rank, size, port), "DCP_COMM_CHECK": "0", **environment(rank)},
        )
        for rank in range(size)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.end()


def told(
    scenario: str,
    backend: str,
    size: int,
    environment: Callable[[int], dict[str, str]] = shared_gpu,
    seconds: float = 200.0,
) -> list[list[Report]]:
    """All reports of every rank, which must all end well."""
    with ranks(scenario, backend, size, environment) as processes:
        reports = [process.rest(seconds) for process in processes]
        for process in processes:
            assert process.wait(30) == 0, process.errors()
        return reports


def named(reports: list[Report], name: str) -> Any:
    """The facts of one report."""
    found = [each["facts"] for each in reports if each["name"] == name]
    assert len(found) == 1, f"{name} in {[each['name'] for each in reports]}"
    return found[0]


def attempt(name: str, call: Callable[[], object]) -> None:
    """Report what a call returns or how it fails, and how long that took."""
    started = time.monotonic()
    try:
        facts: object = call()
    except Exception as error:
        facts = {"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}
    report(name=name, facts=facts, seconds=time.monotonic() - started)


def parts(backend: str) -> None:
    """Every part on one communicator, beside torch's own nccl group."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    dist.all_reduce(torch.ones(1, device="cuda"))
    with dc.from_process_group(None, backend) as comm:
        for name, part in PARTS.items():
            attempt(name, lambda part=part: part(comm))  # type: ignore[misc]
            torch.cuda.synchronize()
    dist.destroy_process_group()


def adopts(_: str) -> None:
    """A communicator of torch's, one of CuPy's and one of ours, each adopted and left alone."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl", device_id=device)
    group = dist.group.WORLD
    dist.all_reduce(torch.ones(1, device="cuda"))

    def adopt(pointer: object, **more: object) -> object:
        with dc.adopt_nccl(pointer, rank, size, device, **more) as comm:  # type: ignore[arg-type]
            facts = merges_are_exact(comm)
            calls = Calls(comm, 9)
            calls.fill(1)
            calls.make()
            return {**facts, "calls": int(calls.wrong(1)), "name": comm.name}

    attempt("torch's group", lambda: adopt(group))
    with dc.from_process_group(None, "pynccl") as lender:
        handle = lender._channel.backend._handle  # type: ignore[attr-defined]
        attempt("an address", lambda: adopt(handle.comm))
        attempt("the lender lives", lambda: calls_of(lender))
    if "cupy" in {info.name for info in dc.list_backends() if info.available}:
        with dc.from_process_group(None, "cupy") as lender:
            handle = lender._channel.backend._handle  # type: ignore[attr-defined]
            attempt("an object with .comm", lambda: adopt(handle.comm))
    total = torch.ones(3, device="cuda")
    dist.all_reduce(total)
    report(name="torch's group lives", facts={"total": total.tolist()}, seconds=0.0)
    dist.destroy_process_group()


def calls_of(comm: Communicator) -> object:
    """All calls once; how many were wrong."""
    calls = Calls(comm, 9)
    calls.fill(2)
    calls.make()
    return {"wrong": int(calls.wrong(2))}


def live_graph(backend: str) -> None:
    """Close while a captured graph lives; delete it; end."""
    comm = dc.init(backend, timeout=TIMEOUT)
    torch.cuda.set_device(comm.device)
    calls = Calls(comm, 9)
    calls.fill(0)
    calls.make()
    graph = captured(calls.make)
    graph.replay()
    torch.cuda.synchronize()
    ending = comm._channel.backend._ending  # type: ignore[attr-defined]
    attempt("close", lambda: comm.close(timeout=2.0))
    ended = ending._ended.is_set()
    if int(os.environ["RANK"]) == 0:
        del graph, calls
        torch.cuda.synchronize()
        attempt("after the graph", lambda: ending._ended.wait(10.0))
    report(name="ended", facts={"at close": ended, "later": ending._ended.is_set()}, seconds=0.0)


def lost_peer(comm: Communicator, work: Callable[[], object]) -> None:
    """Rank 1 kills itself after a while; the others report when they were told."""
    ended = time.monotonic() + 60
    turns = 0
    try:
        while time.monotonic() < ended:
            work()
            torch.cuda.synchronize()
            turns += 1
            if turns == 20 and comm.rank == 1:
                report(name="dies", facts=None, seconds=0.0)
                os.kill(os.getpid(), signal.SIGKILL)
            comm.check()
    except DcpCommError as error:
        facts = {"error": type(error).__name__, "text": str(error), "turns": turns}
        report(name="told", facts=facts, seconds=0.0)
    started = time.monotonic()
    comm.close(timeout=2.0)
    report(name="closed", facts=None, seconds=time.monotonic() - started)


def killed_eager(backend: str) -> None:
    """In a gather."""
    comm = dc.init(backend, timeout=TIMEOUT)
    torch.cuda.set_device(comm.device)
    slots = torch.zeros(comm.size, 1 << 16, device=comm.device)
    lost_peer(comm, lambda: comm.all_gather_into(slots, slots[comm.rank]))


def killed_replay(backend: str) -> None:
    """In the replay of a graph."""
    comm = dc.init(backend, timeout=TIMEOUT)
    torch.cuda.set_device(comm.device)
    slots = torch.zeros(comm.size, 1 << 16, device=comm.device)
    comm.all_gather_into(slots, slots[comm.rank])
    graph = captured(lambda: comm.all_gather_into(slots, slots[comm.rank]))
    lost_peer(comm, graph.replay)


def absent(backend: str) -> None:
    """Rank 1 never makes the call that rank 0 waits for."""
    comm = dc.init(backend, timeout=TIMEOUT)
    torch.cuda.set_device(comm.device)
    comm.prepare(1 << 10)
    total = torch.zeros(4, device=comm.device)
    if comm.rank == 0:
        comm.all_reduce(total)
        started = time.monotonic()
        torch.cuda.synchronize()
        report(name="set free", facts=None, seconds=time.monotonic() - started)
        attempt("check", comm.check)
        attempt("next", lambda: comm.all_reduce(total))
    else:
        time.sleep(2 * TIMEOUT)
    attempt("close", lambda: comm.close(timeout=2.0))


def killed_init(backend: str) -> None:
    """Rank 1 dies when all have met, on its way into NCCL."""

    def dies(*_: object) -> None:
        report(name="dies", facts=None, seconds=0.0)
        os.kill(os.getpid(), signal.SIGKILL)

    if os.environ["RANK"] == "1":
        load(backend)._join = dies  # type: ignore[attr-defined]
    attempt("init", lambda: dc.init(backend, timeout=TIMEOUT, init_timeout=INIT_TIMEOUT))


def made_again(backend: str) -> None:
    """A communicator dies because rank 1 never calls; the next one in the same processes works."""
    names = []
    for _ in range(2):
        with dc.init(backend, timeout=TIMEOUT) as comm:
            torch.cuda.set_device(comm.device)
            names.append((comm.name, calls_of(comm)))
            total = torch.zeros(4, device=comm.device)
            if comm.rank == 0:
                comm.all_reduce(total)
                torch.cuda.synchronize()
                attempt("dies", comm.check)
            else:
                time.sleep(1.5 * TIMEOUT)
    report(name="names", facts=names, seconds=0.0)


def long_queue(backend: str) -> None:
    """Work on the stream before a call takes longer than a call may."""
    comm = dc.init(backend, timeout=TIMEOUT / 2)
    torch.cuda.set_device(comm.device)
    comm.prepare(1 << 10)
    time.sleep(0.5)  # until the watch wants a call to be marked
    begun = time.monotonic()
    torch.cuda._sleep(1 << 30)
    torch.cuda.synchronize()
    one = time.monotonic() - begun
    comm.barrier()
    total = torch.ones(4, device=comm.device)
    for _ in range(int(1.5 * comm.timeout / one) + 1):
        torch.cuda._sleep(1 << 30)
    begun = time.monotonic()
    comm.all_reduce(total)
    torch.cuda.synchronize()
    attempt("check", comm.check)
    facts = {"queued": time.monotonic() - begun, "total": total.tolist(), "timeout": comm.timeout}
    report(name="queue", facts=facts, seconds=0.0)
    comm.close()


def watched_capture(backend: str) -> None:
    """Captures that last longer than the watch naps, with marked calls before each."""
    comm = dc.init(backend, timeout=TIMEOUT)
    torch.cuda.set_device(comm.device)
    calls, wrong = Calls(comm, 9), 0
    calls.fill(0)
    calls.make()
    for turn in range(1, 8):
        calls.make()

        def slowly() -> None:
            time.sleep(0.25)
            calls.make()
            time.sleep(0.25)

        graph = captured(slowly)
        calls.fill(turn)
        graph.replay()
        wrong += int(calls.wrong(turn))
        del graph
    attempt("check", comm.check)
    report(name="wrong", facts=wrong, seconds=0.0)
    comm.close()


def headers(backend: str) -> None:
    """Merges whose headers agree, eager and replayed; what they cost; then one that differs."""
    comm = dc.init(backend, timeout=TIMEOUT)
    torch.cuda.set_device(comm.device)
    merges = Merges(comm)
    wanted = merges.fill(0)
    merges.run()
    graph = captured(merges.run)
    graph.replay()
    torch.cuda.synchronize()
    attempt("check", comm.check)
    report(name="wrong", facts=int((merges.out.ids != wanted).sum()), seconds=0.0)
    plain = comm._channel._headers
    comm._channel._headers = None
    bare = captured(merges.run)
    comm._channel._headers = plain
    report(name="cost", facts={"with": timed(graph), "without": timed(bare)}, seconds=0.0)
    job = merges.merge.begin(ROWS, scratch=merges.scratch, longest=10**6 + comm.rank)
    job.pack(merges.scores, merges.ids)
    job.finish()
    torch.cuda.synchronize()
    attempt("differs", comm.check)
    comm.close()


def timed(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(50):
        graph.replay()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1000 / 50


def no_close(backend: str) -> None:
    """End without closing anything."""
    comm = dc.init(backend, timeout=TIMEOUT)
    torch.cuda.set_device(comm.device)
    attempt("calls", lambda: calls_of(comm))


def two_on_one_gpu(backend: str) -> None:
    """Without host ids of their own."""
    os.environ.pop("NCCL_HOSTID")
    attempt("init", lambda: dc.init(backend, timeout=TIMEOUT, init_timeout=20.0))


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
