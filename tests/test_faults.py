"""Faults to order: what each makes of a call, how calls are counted, what is refused."""

from collections.abc import Callable, Sequence

import pytest
import torch

from dcp_comm.backend import SoloBackend
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import BackendUnavailable, CommArgumentError, CommUsageError
from dcp_comm.testing import run_ranks
from dcp_comm.testing.faults import (
    Delay,
    Drop,
    Fault,
    FaultPlan,
    FaultyBackend,
    Flip,
    Kill,
    Stop,
    Swap,
    Truncate,
    WrongDtype,
    WrongShape,
)


class Recorder(SoloBackend):
    """Keeps what it is asked to do, and does nothing."""

    def __init__(self) -> None:
        super().__init__("mine", torch.device("cpu"))
        self.launches: list[list[str]] = []

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        self.launches.append([str(call) for call in calls])


def test_calls_are_counted_singly_over_all_launches() -> None:
    a, b, c, d = (Call("broadcast", each, each) for each in map(torch.empty, range(1, 5)))
    plan, below = FaultPlan(Drop(0, 1), Swap(0, 2)), Recorder()
    faulty = FaultyBackend(below, plan)
    for launch in ([a, b], [c], [d]):
        faulty.issue(launch, None, Deadline(1))
    assert below.launches == [[str(a)], [str(d), str(c)]]
    assert plan.seen == plan.armed == {Drop(0, 1), Swap(0, 2)}


@pytest.mark.parametrize("op", ["all_gather_into", "reduce_scatter_into", "all_to_all_into"])
@pytest.mark.parametrize("block", [1, 2, 5])
def test_a_wrong_shape_is_half_of_every_block(op: str, block: int) -> None:
    whole, part = torch.arange(3 * block), torch.arange(block)
    output, input = {
        "all_gather_into": (whole, part),
        "reduce_scatter_into": (part, whole),
        "all_to_all_into": (whole, whole.clone()),
    }[op]
    (wrong,) = WrongShape(0, 0).strike(Call(op, output, input), 3)
    half = {id(whole): 3 * (block // 2), id(part): block // 2}
    assert wrong.output.numel() == half[id(output)]
    assert wrong.input.numel() == half.get(id(input), 3 * (block // 2))
    assert wrong.output.data_ptr() in {0, output.data_ptr()}


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (torch.float32, torch.int32),
        (torch.int32, torch.float32),
        (torch.int64, torch.float64),
        (torch.bfloat16, torch.float16),
        (torch.bool, torch.uint8),
        (torch.complex128, torch.uint8),
    ],
)
def test_a_wrong_dtype_is_the_same_bytes(dtype: torch.dtype, other: torch.dtype) -> None:
    tensor = torch.ones((), dtype=dtype)
    (wrong,) = WrongDtype(0, 0).strike(Call("all_reduce", tensor, tensor), 3)
    assert wrong.output.dtype == wrong.input.dtype == other
    assert (wrong.output.data_ptr(), wrong.output.nbytes) == (tensor.data_ptr(), tensor.nbytes)


def test_a_backend_below_is_what_it_was() -> None:
    plan, below = FaultPlan(Drop(0, 0)), Recorder()
    faulty = FaultyBackend(below, plan)
    assert (faulty.name, faulty.rank, faulty.size) == ("mine", 0, 1)
    assert faulty.capabilities == SoloBackend.capabilities
    assert plan.armed == {Drop(0, 0)}
    with pytest.raises(BackendUnavailable, match="wrap a backend that is connected"):
        FaultyBackend.connect(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [(-1, 0), (0, -1), (True, 0), (0, 1.0)])
def test_what_is_no_place_for_a_fault(fault: tuple[int, int]) -> None:
    with pytest.raises(CommArgumentError, match=r"Drop: (rank|call): got .*, need an int"):
        Drop(*fault)


def test_two_faults_at_one_call_are_refused() -> None:
    with pytest.raises(CommArgumentError, match="at most one at each call of a rank"):
        FaultPlan(Drop(0, 1), Swap(0, 1))


@pytest.mark.parametrize("place", [FaultPlan.into_program, FaultPlan.into_backend])
@pytest.mark.parametrize("kind", [Kill, Stop])
def test_what_takes_a_process_is_refused_where_ranks_share_one(
    kind: type[Fault], place: Callable[[FaultPlan, Communicator], None]
) -> None:
    """On its rank; the others are armed with what is theirs."""
    plan = FaultPlan(kind(1, 0), Drop(0, 5))

    def fn(comm: Communicator) -> None:
        if comm.rank == 1:
            with pytest.raises(CommUsageError, match=f"faults: got {kind.__name__}.*processes"):
                place(plan, comm)
        else:
            place(plan, comm)

    run_ranks(fn, 2)
    assert plan.armed == {Drop(0, 5)}


@pytest.mark.parametrize("after", [0, -1.0, float("inf"), "1"])
def test_a_kill_inside_a_call_has_a_time(after: object) -> None:
    with pytest.raises(CommArgumentError, match="Kill: after: got"):
        Kill(0, 0, after=after)  # type: ignore[arg-type]


def test_a_witness_is_told_before_a_fault_strikes() -> None:
    told: list[tuple[Fault, list[list[str]]]] = []
    below = Recorder()
    plan = FaultPlan(
        Delay(0, 0, seconds=0.0),
        Drop(0, 2),
        witness=lambda fault: told.append((fault, list(below.launches))),
    )
    faulty, call = FaultyBackend(below, plan), Call("broadcast", torch.empty(1), torch.empty(1))
    for _ in range(3):
        faulty.issue([call], None, Deadline(1))
    assert told == [(Delay(0, 0, seconds=0.0), []), (Drop(0, 2), [[str(call)]] * 2)]


def test_a_payload_is_spoiled_in_what_is_sent_alone() -> None:
    whole, part = torch.zeros(3, 4, dtype=torch.uint8), torch.full((4,), 3, dtype=torch.uint8)
    (flipped,) = Flip(0, 0, bit=17).strike(Call("all_gather_into", whole, part), 3)
    assert (flipped.input.tolist(), flipped.output is whole) == ([3, 3, 1, 3], True)
    (cut,) = Truncate(0, 0).strike(Call("all_gather_into", whole, part), 3)
    assert cut.input.tolist() == [3, 3, 0, 0]
    assert part.tolist() == [3] * 4
    (reduced,) = Truncate(0, 0).strike(Call("all_reduce", part, part), 3)
    assert reduced.input is reduced.output is part
    assert part.tolist() == [3, 3, 0, 0]


def test_a_bit_that_the_call_does_not_have() -> None:
    one = torch.zeros(1, dtype=torch.uint8)
    with pytest.raises(CommArgumentError, match="Flip: bit: got 8, need below 8"):
        Flip(0, 0, bit=8).strike(Call("send", one, one.clone()), 2)
    with pytest.raises(CommArgumentError, match="bit: got -1"):
        Flip(0, 0, bit=-1)
