"""Faults to order on ranks that are processes over gloo; run on each by `tests.launches`."""

import os
import time
from collections.abc import Callable

import torch

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from dcp_comm.testing.faults import (
    Delay,
    Drop,
    Fault,
    FaultPlan,
    Raise,
    Swap,
    WrongDtype,
    WrongShape,
)
from tests.processes import Report, report
from tests.scenarios import failure, gather
from tests.topk.cases import rows_of

ODD, POISON = 1, 7.0
LEVELS = ("0", "merge", "all")
MISTAKES = (WrongShape, WrongDtype, Swap)
CALL_SECONDS, SHORT_SECONDS = 20.0, 2.0

Work = Callable[[Communicator], object]


def main() -> None:
    """Every topic at every level, each on a communicator of its own."""
    control = dc.init("torch", "cpu", timeout=60)
    for level in LEVELS:
        os.environ["DCP_COMM_CHECK"] = level
        with dc.init("torch", "cpu", timeout=CALL_SECONDS) as comm:
            for topic, (faults, work) in topics(level).items():
                broken(comm, f"{topic} at {level}", faults, work)
        drop(control, level)
    control.close()


def topics(level: str) -> dict[str, tuple[tuple[Fault, ...], Work]]:
    """What is tried at a level, with the faults that go with it."""
    found: dict[str, tuple[tuple[Fault, ...], Work]] = {
        "raise": ((Raise(ODD, 1),), calls),
        "delay": ((Delay(ODD, 0, seconds=0.2), Delay(0, 2, seconds=0.1)), calls),
    }
    if level == "all":  # below it, bytes that differ in number end a process over gloo
        found |= {mistake.__name__: ((mistake(ODD, 1),), calls) for mistake in MISTAKES}
    if level != "0":
        found["rows"] = (), different_rows
    return found


def calls(comm: Communicator) -> list[float]:
    """Three calls, each unlike the one before; what came of the last."""
    total, exchanged = torch.ones(4), torch.full((2 * comm.size,), POISON)
    gather(comm)
    comm.all_to_all_into(exchanged, torch.zeros(2 * comm.size))
    comm.all_reduce(total)
    return [*total.tolist(), *exchanged.tolist()]


def different_rows(comm: Communicator) -> bool:
    """A merge of three rows, but two on one rank."""
    merge = dc.TopKMerge(comm, 4, 8, strategy="gather", chunk_rows=2)
    merge.prepare()
    comm.ledger.reset()
    try:
        merge(*rows_of(2 if comm.rank == ODD else 3))
    finally:
        exchanged = "all_gather_into" in comm.ledger.by_op
        report(topic=f"exchanged at {os.environ['DCP_COMM_CHECK']}", exchanged=exchanged)
    return exchanged


def broken(comm: Communicator, topic: str, faults: tuple[Fault, ...], work: Work) -> None:
    """Run work with faults on a part that may die of it, and say how it ended."""
    part, plan = comm.split(0), FaultPlan(*faults)
    assert part is not None
    mistakes = any(isinstance(fault, MISTAKES) for fault in faults)
    (plan.into_program if mistakes else plan.into_backend)(part)
    started = time.monotonic()
    told = failure(lambda: work(part))
    again = failure(part.check)["error"]
    part.close()
    report(topic=topic, started=started, again=again, **told, **counts(plan))
    comm.barrier()


def drop(control: Communicator, level: str) -> None:
    """A rank leaves a call out and does nothing more until the others have noticed."""
    plan = FaultPlan(Drop(ODD, 1))
    with dc.init("torch", "cpu", timeout=SHORT_SECONDS) as comm:
        control.barrier()
        plan.into_backend(comm)
        gather(comm)
        told = failure(lambda: gather(comm, 5))
        if comm.rank == ODD:
            time.sleep(SHORT_SECONDS)
        control.barrier()
    report(topic=f"drop at {level}", **told, **counts(plan))


def counts(plan: FaultPlan) -> Report:
    """How many faults were armed here, and how many have struck."""
    return {"armed": len(plan.armed), "seen": len(plan.seen)}


if __name__ == "__main__":
    main()
