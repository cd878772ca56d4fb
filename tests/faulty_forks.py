"""What forked ranks do in tests of faults that take whole processes; run by `tests.forks`.

A rank is told by ``FAULTS``, a JSON list of ``[kind, fields]``, what is ordered and where.
"""

import dataclasses
import json
import os
import time

import numpy as np

import dcp_comm as dc
from dcp_comm.backends.torch_distributed import TorchBackend
from dcp_comm.communicator import Communicator
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.testing import faults
from dcp_comm.testing.faults import Fault, FaultPlan
from tests.processes import Report, report
from tests.scenarios import failure, gather
from tests.topk.cases import Case, merge_on_a_rank
from tests.topk.scores import drawn

CHUNKS = 3
CALLS = {"gather": CHUNKS, "owner": 2 * CHUNKS, "splitter": 2 * CHUNKS}
"""How many calls a merge of all chunks makes."""


def ordered(*wanted: Fault) -> str:
    """The value of ``FAULTS`` for these."""
    return json.dumps([[type(each).__name__, dataclasses.asdict(each)] for each in wanted])


def witness(fault: Fault) -> None:
    """Say that a fault strikes now: the last word of a process that it ends."""
    report(topic="struck", kind=type(fault).__name__, call=fault.call)


def armed() -> FaultPlan:
    """The plan that this rank was given."""
    found = json.loads(os.environ["FAULTS"])
    kinds = (getattr(faults, name)(**fields) for name, fields in found)
    return FaultPlan(*kinds, witness=witness)


def a_case(strategy: str, size: int) -> Case:
    """Nine rows in three chunks."""
    rng = np.random.default_rng(3)
    scores, lengths = drawn("few", 9, 60, rng), np.full(9, 60)
    output = "local" if strategy == "splitter" else "global"
    case = Case(scores, lengths, size, 12, chunk_rows=9 // CHUNKS, output=output)
    return dataclasses.replace(case, strategy=strategy)


def merge() -> None:
    """One merge with faults, how it ended, and what the communicator says afterwards."""
    plan = armed()
    comm = dc.init("torch", "cpu", timeout=float(os.environ.get("CALL_TIMEOUT", "30")))
    case = a_case(os.environ["STRATEGY"], comm.size)
    plan.into_backend(comm)
    report(topic="ready", armed=len(plan.armed))
    told = failure(lambda: merge_right(comm, case))
    report(topic="merge", **told, again=failure(lambda: gather(comm)), seen=len(plan.seen))
    report(topic="close", **failure(comm.close))
    time.sleep(float(os.environ.get("LINGER", "0")))


def merge_right(comm: Communicator, case: Case) -> str:
    """``right`` or ``wrong``, as the plain answer says."""
    found = merge_on_a_rank(comm, case)
    winners, counts = case.expected(comm.rank)
    right = np.array_equal(found.ids, winners) and np.array_equal(found.counts, counts)
    return "right" if right else "wrong"


def gathers() -> None:
    """Gather until it fails, with faults, and say how it ended."""
    plan = armed()
    comm = dc.init("torch", "cpu", timeout=float(os.environ["CALL_TIMEOUT"]))
    plan.into_backend(comm)
    report(topic="ready", armed=len(plan.armed))
    told: Report = {"error": "list"}
    while told["error"] == "list":
        told = failure(lambda: gather(comm))
    report(topic="gather", **told, again=failure(lambda: gather(comm)))
    report(topic="close", **failure(comm.close))


def dies_in_init() -> None:
    """Rank ``VICTIM`` ends after the ranks have met, before they are connected."""
    connect = TorchBackend.connect.__func__  # type: ignore[attr-defined]

    def deadly(cls: type[TorchBackend], meeting: Rendezvous) -> TorchBackend:
        if f"{meeting.rank}" == os.environ["VICTIM"]:
            report(topic="struck")
            os.kill(os.getpid(), 9)
        return connect(cls, meeting)  # type: ignore[no-any-return]

    TorchBackend.connect = classmethod(deadly)  # type: ignore[method-assign,assignment]
    report(topic="init", **failure(lambda: dc.init("torch", "cpu", init_timeout=2.0)))
