"""Rules of a communicator's life: parts, agreement, barrier, preparation, the ledger, the end."""

import time

import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommClosed, CommMismatch
from dcp_comm.testing.conformance.moving import gather
from dcp_comm.testing.conformance.rules import Check, Expect, rule


def part_of(comm: Communicator, color: int | None, key: int = 0) -> Communicator:
    """Split where this rank must get a part."""
    part = comm.split(color, key)
    if part is None:
        raise CommArgumentError(f"split: color {color}: got None, need a communicator")
    return part


def members(part: Communicator, comm: Communicator) -> list[int]:
    """Ranks of ``comm`` that sit in a part, in the part's order, as its own gather tells."""
    slots = torch.full((part.size,), -1, device=comm.device)
    part.all_gather_into(slots, torch.tensor(comm.rank, device=comm.device))
    return slots.tolist()


@rule
def a_split_orders_by_key_then_rank(comm: Communicator, expect: Expect) -> None:
    """Reversed keys reverse the ranks; equal keys keep their order."""
    forward = list(range(comm.size))
    for key, wanted in ((0, forward), (-comm.rank, forward[::-1]), (comm.rank, forward)):
        with part_of(comm, 0, key) as part:
            expect.equal(members(part, comm), wanted, f"split by key {key}")
            expect.equal(part.rank, wanted.index(comm.rank), "rank in the part")
            gather(part, expect, (17,), torch.float32)


@rule
def a_split_separates_colors(comm: Communicator, expect: Expect) -> None:
    """Even and odd ranks talk among themselves at the same time; None stays outside."""
    color = comm.rank % 2
    with part_of(comm, color) as part:
        expect.equal(members(part, comm), list(range(color, comm.size, 2)), "members")
        total = torch.tensor(comm.rank, device=comm.device)
        part.all_reduce(total)
        expect.equal(total.item(), sum(range(color, comm.size, 2)), "all_reduce in the part")
    alone = comm.split(7 if comm.rank == 0 else None)
    expect.equal(alone is not None, comm.rank == 0, "a part for rank 0 alone")
    if alone is not None:
        gather(alone, expect, (3,), torch.float32)
        alone.close()


@rule
def parts_outlive_their_parent(comm: Communicator, expect: Expect) -> None:
    """A part of a part goes on when what is between is closed."""
    parent = part_of(comm, 0)
    child = part_of(parent, 0, -comm.rank)
    parent.close()
    expect.equal(members(child, comm), list(range(comm.size))[::-1], "members")
    child.close()
    gather(comm, expect, (5,), torch.float32)


@rule
def a_barrier_waits_for_the_last(comm: Communicator, expect: Expect) -> None:
    """Nobody passes while one rank sleeps."""
    nap = 0.05
    for late in range(min(comm.size, 4)):
        comm.barrier()
        started = time.monotonic()
        if comm.rank == late:
            time.sleep(nap)
        comm.barrier()
        waited = time.monotonic() - started
        expect.that(waited >= nap / 2, f"barrier: passed {nap - waited:.3f} s too early")


@rule
def agreement_tells_everyone(comm: Communicator, expect: Expect) -> None:
    """Common fields and each rank's own come back as text, in rank order."""
    ranks = comm.agree("rule", {"k": 2048}, {"rank": comm.rank})
    wanted = [{"k": "2048", "rank": str(rank)} for rank in range(comm.size)]
    expect.equal(ranks, wanted, "agree")


@rule
def preparation_is_harmless(comm: Communicator, expect: Expect) -> None:
    """For one byte as for many; any call works afterwards."""
    for max_bytes in (1, 4099):
        comm.prepare(max_bytes)
    gather(comm, expect, (4099,), torch.uint8)


@rule
def the_ledger_counts_logical_bytes(comm: Communicator, expect: Expect) -> None:
    """By nccl-tests' factors; what this rank sends and receives by itself as it is."""
    size, block = comm.size, 24
    whole = torch.zeros(size * block, dtype=torch.uint8, device=comm.device)
    part = torch.zeros(block, dtype=torch.uint8, device=comm.device)
    comm.ledger.reset()
    comm.all_gather_into(whole, part)
    comm.all_to_all_into(whole.clone(), whole)
    comm.reduce_scatter_into(part, whole)
    comm.all_reduce(whole)
    comm.broadcast(part, 0)
    others = (size - 1) * block
    wanted = {
        "all_gather_into": others,
        "all_to_all_into": others,
        "reduce_scatter_into": others,
        "all_reduce": 2 * others,
        "broadcast": block if size > 1 else 0,
    }
    for op, nbytes in wanted.items():
        traffic = comm.ledger.by_op[op]
        expect.equal((traffic.calls, traffic.bytes_sent), (1, nbytes), f"{op}: calls, bytes sent")
        expect.equal(traffic.bytes_received, nbytes, f"{op}: bytes received")
    expect.equal(comm.ledger.calls, 5, "calls in all")
    expect.equal(comm.ledger.bytes_sent, sum(wanted.values()), "bytes sent in all")


@rule
def streams_are_respected(comm: Communicator, expect: Expect) -> None:
    """On CUDA a call takes its place among its stream's work; on CPU there are no streams."""
    if comm.device.type != "cuda":
        with expect.refusal(CommArgumentError, "stream on CPU", "stream: got", "need"):
            comm.all_reduce(torch.zeros(1), stream=object())  # type: ignore[arg-type]
        return
    side = torch.cuda.Stream(comm.device)
    total, seen = (torch.zeros(1 << 20, device=comm.device) for _ in range(2))
    torch.cuda.current_stream(comm.device).synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        total.fill_(comm.rank + 1)
    comm.all_reduce(total, stream=side)
    with torch.cuda.stream(side):
        seen.copy_(total)
    side.synchronize()
    wanted = comm.size * (comm.size + 1) / 2
    expect.equal(seen.unique().tolist(), [wanted], "all_reduce on a side stream")


@rule
def closing_is_final_and_repeatable(comm: Communicator, expect: Expect) -> None:
    """Close twice, abort afterwards; every call then says that it was closed."""
    part = part_of(comm, 0)
    part.check()
    part.barrier()
    part.close()
    part.close()
    part.abort()
    for call in (part.barrier, part.check, lambda: gather(part, expect, (1,), torch.float32)):
        with expect.refusal(CommClosed, "use after close", "closed"):
            call()
    gather(comm, expect, (1,), torch.float32)


@rule
def a_mismatch_ends_only_what_it_met(comm: Communicator, expect: Expect) -> None:
    """Disagreement in a part raises on each of its ranks, again and again; the whole goes on."""
    part = part_of(comm, 0)
    if comm.size > 1:
        for _ in range(2):
            with expect.refusal(CommMismatch, "agree", "k", str(2048 + comm.rank)):
                part.agree("rule", {"k": 2048 + part.rank})
    part.close()
    gather(comm, expect, (1,), torch.float32)


CHECKS: tuple[Check, ...] = (
    a_split_orders_by_key_then_rank,
    a_split_separates_colors,
    parts_outlive_their_parent,
    a_barrier_waits_for_the_last,
    agreement_tells_everyone,
    preparation_is_harmless,
    the_ledger_counts_logical_bytes,
    streams_are_respected,
    closing_is_final_and_repeatable,
    a_mismatch_ends_only_what_it_met,
)
