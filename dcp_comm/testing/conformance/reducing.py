"""Rules of the operations that compute: all-reduce and reduce-scatter."""

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.contract import REDUCTIONS
from dcp_comm.testing.conformance.buffers import Buffer
from dcp_comm.testing.conformance.rules import Check, Expect, rule

COUNTS = (1, 17)

# One value a dtype that no narrower one can hold, and the step from a rank to the next.
WIDE: dict[torch.dtype, tuple[float | int, float | int]] = {
    torch.int32: (2**24 + 1, 2),
    torch.int64: (2**53 + 1, 2),
    torch.float32: (1.0 + 2**-20, 2**-21),
    torch.float64: (1.0 + 2**-50, 2**-51),
}


def terms(op: str, dtype: torch.dtype, size: int, count: int) -> Tensor:
    """Every rank's numbers, (size, count) int64: small, so that no dtype rounds their reduction."""
    rank = torch.arange(size)[:, None]
    position = torch.arange(count)[None, :]
    signed = 1 if dtype.is_signed else 0
    match op:
        case "sum":
            return (7 * position + 3 * rank) % 4 - signed
        case "prod":
            # At most three factors of 2 at a position, whatever the number of ranks.
            magnitude = 1 + ((position + rank) % size < 3).long()
            return torch.where((position % 2 == 1) & (rank % 2 == 1) & (signed == 1), -1, 1) * (
                magnitude
            )
        case "avg":
            return position % 9 + 2 * rank - (size - 1)
        case _:
            return (13 * position + 29 * rank) % 97 - 48 * signed


def reduced(op: str, numbers: Tensor) -> Tensor:
    """The reduction over ranks, in int64."""
    match op:
        case "sum":
            return numbers.sum(0)
        case "prod":
            return numbers.prod(0)
        case "avg":
            return numbers.sum(0) // len(numbers)
        case "max":
            return numbers.amax(0)
        case _:
            return numbers.amin(0)


def tolerance(op: str, dtype: torch.dtype, numbers: Tensor) -> float:
    """0, but a few roundings for avg, where a library may scale each term first."""
    if op != "avg":
        return 0.0
    return float(torch.finfo(dtype).eps * (len(numbers) + 1) * numbers.abs().max())


def all_reduce(comm: Communicator, expect: Expect, op: str, dtype: torch.dtype, count: int) -> None:
    """Reduce a tensor over all ranks, in place."""
    numbers = terms(op, dtype, comm.size, count)
    buffer = Buffer((count,), dtype, comm.device)
    buffer.tensor.copy_(numbers[comm.rank])
    comm.all_reduce(buffer.tensor, op)
    what = f"all_reduce {op} {dtype} x {count}"
    expect.that(buffer.is_guarded(), f"{what}: memory beside the tensor was written")
    expect.close_to(buffer.tensor.cpu(), reduced(op, numbers), tolerance(op, dtype, numbers), what)


def reduce_scatter(
    comm: Communicator,
    expect: Expect,
    op: str,
    dtype: torch.dtype,
    count: int,
    *,
    stacked: bool = True,
    in_place: bool = False,
) -> None:
    """Reduce, keep this rank's slot, leave the input (apart from an in-place slot) as it was."""
    what = f"reduce_scatter_into {op} {dtype} x {count}{' in place' if in_place else ''}"
    numbers = terms(op, dtype, comm.size, comm.size * count)
    shape = (comm.size, count) if stacked else (comm.size * count,)
    input, separate = Buffer(shape, dtype, comm.device), Buffer((count,), dtype, comm.device)
    input.tensor.copy_(numbers[comm.rank].view(shape))
    before = input.read()
    slot = input.tensor.view(comm.size, count)[comm.rank]
    output = slot if in_place else separate.tensor
    comm.reduce_scatter_into(output, input.tensor, op)
    wanted = reduced(op, numbers).view(comm.size, count)[comm.rank]
    expect.close_to(output.cpu(), wanted, tolerance(op, dtype, numbers), what)
    expect.that(
        input.is_guarded() and separate.is_guarded(), f"{what}: memory beside it was written"
    )
    if not in_place:
        expect.holds(input, before, f"{what}: input")


@rule
def all_reduce_is_exact(comm: Communicator, expect: Expect) -> None:
    """Every reduction on every dtype it is defined on, with numbers that nothing rounds."""
    for op, legal in REDUCTIONS.items():
        for dtype in legal:
            for count in COUNTS:
                all_reduce(comm, expect, op, dtype, count)


@rule
def reduce_scatter_is_exact(comm: Communicator, expect: Expect) -> None:
    """The same, each rank keeping its slot; the input may be stacked or joined."""
    for op, legal in REDUCTIONS.items():
        for dtype in legal:
            for count in COUNTS:
                reduce_scatter(comm, expect, op, dtype, count, stacked=count > 1)


@rule
def reduce_scatter_works_in_place(comm: Communicator, expect: Expect) -> None:
    """The output may be exactly this rank's slot of the input."""
    for dtype in (torch.int32, torch.float32):
        for count in (1, 17, 1009):
            reduce_scatter(comm, expect, "sum", dtype, count, in_place=True)


@rule
def scalars_are_reduced(comm: Communicator, expect: Expect) -> None:
    """0-d tensors work, and a stack of them scatters to one."""
    total = comm.size * (comm.size + 1) // 2
    number = torch.tensor(comm.rank + 1, device=comm.device)
    comm.all_reduce(number)
    expect.equal(number.item(), total, "all_reduce of a scalar")
    slots = torch.full((comm.size,), comm.rank + 1, device=comm.device)
    output = torch.tensor(-1, device=comm.device)
    comm.reduce_scatter_into(output, slots)
    expect.equal(output.item(), total, "reduce_scatter_into of scalars")


@rule
def nothing_is_narrowed(comm: Communicator, expect: Expect) -> None:
    """The last bit counts: no reduction takes a way through a smaller type."""
    for dtype, (first, step) in WIDE.items():
        values = [first + step * rank for rank in range(comm.size)]
        for op, wanted in (("max", max(values)), ("min", min(values))):
            tensor = torch.full((3,), values[comm.rank], dtype=dtype, device=comm.device)
            comm.all_reduce(tensor, op)
            expect.equal(tensor.tolist(), [wanted] * 3, f"{op} of {dtype}")


@rule
def empty_reductions_do_nothing(comm: Communicator, expect: Expect) -> None:
    """Numel 0 is legal for reductions too."""
    before = comm.ledger.bytes_sent
    for op in REDUCTIONS:
        comm.all_reduce(torch.empty(0, device=comm.device), op)
        output = torch.empty(0, 3, device=comm.device)
        comm.reduce_scatter_into(output, torch.empty(comm.size, 0, 3, device=comm.device), op)
    expect.equal(comm.ledger.bytes_sent, before, "bytes sent after empty calls")


CHECKS: tuple[Check, ...] = (
    all_reduce_is_exact,
    reduce_scatter_is_exact,
    reduce_scatter_works_in_place,
    scalars_are_reduced,
    nothing_is_narrowed,
    empty_reductions_do_nothing,
)
