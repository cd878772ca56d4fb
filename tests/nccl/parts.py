"""What ranks do on a GPU, part by part; each returns what a test then looks at.

Ranks share a GPU, so that nothing here says anything about speed.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from dcp_comm.communicator import Communicator
from dcp_comm.testing.exactness import wrong_rows
from dcp_comm.topk.choice import STRATEGIES
from tests.nccl.workloads import Calls, Merges, captured

Facts = dict[str, object]

REPLAYS, GATHERS = 100, 1000


def merges_are_exact(comm: Communicator) -> Facts:
    """Wrong rows of every strategy."""
    return {strategy: wrong_rows(comm, strategy) for strategy in STRATEGIES}


def graphs_replay(comm: Communicator) -> Facts:
    """Every collective, captured once, replayed with input that changes."""
    calls = Calls(comm, 33)
    calls.fill(0)
    calls.make()
    eager = int(calls.wrong(0))
    graph = captured(calls.make)
    wrong = torch.zeros((), dtype=torch.int64, device=comm.device)
    for turn in range(1, REPLAYS + 1):
        calls.fill(turn)
        graph.replay()
        wrong += calls.wrong(turn)
    comm.check()
    return {"eager": eager, "replayed": int(wrong)}


def a_gather_replays_a_thousand_times(comm: Communicator) -> Facts:
    """In place, with input that changes."""
    slots = torch.zeros(comm.size, 33, dtype=torch.int64, device=comm.device)
    column = torch.arange(comm.size, device=comm.device)[:, None]
    comm.all_gather_into(slots, slots[comm.rank])
    graph = captured(lambda: comm.all_gather_into(slots, slots[comm.rank]))
    wrong = torch.zeros((), dtype=torch.int64, device=comm.device)
    for turn in range(GATHERS):
        slots.fill_(-1)
        slots[comm.rank].fill_(8 * turn + comm.rank)
        graph.replay()
        wrong += (slots != 8 * turn + column).any()
    return {"wrong": int(wrong)}


def two_sizes_share_a_pool(comm: Communicator) -> Facts:
    """Captured for 8 and for 4 rows in one pool, replayed 8, 4, 8."""
    big, small = Calls(comm, 8), Calls(comm, 4)
    for calls in (big, small):
        calls.fill(0)
        calls.make()
    first = captured(big.make)
    second = captured(small.make, first.pool())
    wrong = 0
    for turn, (calls, graph) in enumerate(((big, first), (small, second), (big, first)), 1):
        calls.fill(turn)
        graph.replay()
        wrong += int(calls.wrong(turn))
    return {"wrong": wrong}


def a_merge_replays(comm: Communicator) -> Facts:
    """The whole gather merge captured: eager and replayed winners are those of a plain sort."""
    merges = Merges(comm)
    wanted = merges.fill(0)
    merges.run()
    eager = int((merges.out.ids != wanted).sum())
    graph, wrong = captured(merges.run), 0
    for turn in range(1, 20):
        wanted = merges.fill(turn)
        graph.replay()
        wrong += int((merges.out.ids != wanted).sum())
    return {"eager": eager, "replayed": wrong}


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raise where the host would wait for the GPU."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def allocations(make: Callable[[], object]) -> int:
    """How often torch's allocator is asked for memory, without the host ever waiting."""
    with no_host_sync():
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        make()
        return int(torch.cuda.memory_stats()["allocation.all.allocated"] - before)


def a_warm_merge_allocates_and_waits_for_nothing(comm: Communicator) -> Facts:
    """Counts of a gather in place, and of a whole merge, once warm."""
    merges = Merges(comm)
    merges.fill(0)
    merges.run()
    slots = torch.zeros(comm.size, 64, device=comm.device)
    mine = slots[comm.rank]
    comm.all_gather_into(slots, mine)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    in_merge = allocations(merges.run)
    peak = torch.cuda.max_memory_allocated() - before
    in_gather = allocations(lambda: comm.all_gather_into(slots, mine))
    return {"gather": in_gather, "merge": in_merge, "merge's peak bytes": peak}


def streams_without_an_order_are_ordered(comm: Communicator) -> Facts:
    """A slow call on one stream, and the next on another, over the same buffer."""
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    total = torch.zeros(1 << 16, device=comm.device)
    total.fill_(1)
    torch.cuda.synchronize()
    for turn in range(10):
        stream = one if turn % 2 else other
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
        comm.all_reduce(total, stream=stream)
    torch.cuda.synchronize()
    return {"values": total.unique().tolist(), "wanted": [float(comm.size**10)]}


def neighbours_take_turns(comm: Communicator) -> Facts:
    """Ours and torch's nccl group on one GPU: one stream, two joined by events, and captured."""
    device = comm.device
    ours, theirs = torch.zeros(4096, device=device), torch.zeros(4096, device=device)
    side = torch.cuda.Stream()

    def both() -> None:
        comm.all_reduce(ours)
        dist.all_reduce(theirs)
        comm.all_reduce(ours)

    def on_two_streams() -> None:
        main = torch.cuda.current_stream()
        comm.all_reduce(ours)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            dist.all_reduce(theirs)
        main.wait_stream(side)
        comm.all_reduce(ours)

    def run(make: Callable[[], object], times: int) -> bool:
        torch.cuda.synchronize()
        right = True
        for _ in range(times):
            ours.fill_(1)
            theirs.fill_(2)
            make()
            right &= bool((ours == comm.size**2).all() and (theirs == 2 * comm.size).all())
        return right

    facts: Facts = {}
    for name, make in (("one stream", both), ("two streams", on_two_streams)):
        facts[f"{name}, eager"] = run(make, 20)
        facts[f"{name}, captured"] = run(captured(make).replay, 20)
    return facts


def parts_share_and_come_and_go(comm: Communicator) -> Facts:
    """What a part costs beside its parent, and that closing it leaves the parent alone."""
    costs = []
    for _ in range(2):
        part = comm.split(0)
        assert part is not None
        part.prepare(1 << 20)
        costs.append(part.footprint.by_stage)
        part.close()
    calls = Calls(comm, 5)
    calls.fill(3)
    calls.make()
    return {"wrong": int(calls.wrong(3)), "costs": costs}


def preparing_costs(comm: Communicator) -> Facts:
    """GPU memory by stage; a second time costs nothing more."""
    comm.prepare(16 << 20)
    first = dict(comm.footprint.by_stage)
    comm.prepare(16 << 20)
    return {"first": first, "again": dict(comm.footprint.by_stage), "report": comm.report()}


PARTS = {
    part.__name__: part
    for part in (
        preparing_costs,
        merges_are_exact,
        graphs_replay,
        a_gather_replays_a_thousand_times,
        two_sizes_share_a_pool,
        a_merge_replays,
        a_warm_merge_allocates_and_waits_for_nothing,
        streams_without_an_order_are_ordered,
        neighbours_take_turns,
        parts_share_and_come_and_go,
    )
}
