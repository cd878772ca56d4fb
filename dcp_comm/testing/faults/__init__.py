"""Faults to order: what goes wrong at one call of one rank, in its program or in its backend.

    plan = FaultPlan(Drop(rank=1, call=2), Delay(rank=0, call=0, seconds=0.1))

    def fn(comm):
        plan.into_backend(comm)
        ...

    run_ranks(fn, 2)
    assert plan.seen == plan.armed

What a program does wrong (`FaultPlan.into_program`) comes before the ranks compare their calls, as
far as ``DCP_COMM_CHECK`` has them do so. What goes wrong in a backend comes after that. `Kill` and
`Stop` take the whole process: they are for ranks that are processes, and a plan's ``witness`` is
told of them before they strike.
"""

from dcp_comm.testing.faults.kinds import (
    Delay,
    Drop,
    Fault,
    Flip,
    Kill,
    Raise,
    Stop,
    Swap,
    Truncate,
    WrongDtype,
    WrongShape,
)
from dcp_comm.testing.faults.plan import FaultPlan, FaultyBackend, FaultyCalls

__all__ = [
    "Delay",
    "Drop",
    "Fault",
    "FaultPlan",
    "FaultyBackend",
    "FaultyCalls",
    "Flip",
    "Kill",
    "Raise",
    "Stop",
    "Swap",
    "Truncate",
    "WrongDtype",
    "WrongShape",
]
