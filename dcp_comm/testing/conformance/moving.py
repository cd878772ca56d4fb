"""Rules of the operations that move bytes: gather, all-to-all, broadcast, send and recv."""

import torch

from dcp_comm.communicator import Communicator
from dcp_comm.testing.conformance.buffers import Buffer, dtypes, payload
from dcp_comm.testing.conformance.rules import Check, Expect, rule

ODD_BYTE_COUNTS = (1, 3, 15, 17, 31, 101, 1009, 65_537)
SHAPES = ((), (1,), (7,), (2, 3), (1, 3, 2))
SHIFTED = (torch.uint8, torch.bfloat16, torch.float32, torch.int64)
LARGE_BYTES = (1 << 20) + 3

Shape = tuple[int, ...]


def gather(
    comm: Communicator,
    expect: Expect,
    shape: Shape,
    dtype: torch.dtype,
    *,
    stacked: bool = True,
    shift: int = 0,
) -> None:
    """Gather into a separate output and look at every byte, the input's and the guards' too."""
    what = f"all_gather_into {dtype} {shape} {'stacked' if stacked else 'joined'} shift {shift}"
    input = Buffer(shape, dtype, comm.device, shift)
    whole = (comm.size, *shape) if stacked else (comm.size * shape[0], *shape[1:])
    output = Buffer(whole, dtype, comm.device, shift)
    parts = [payload(what, rank, input.nbytes) for rank in range(comm.size)]
    comm.all_gather_into(output.tensor, input.write(parts[comm.rank]))
    expect.holds(output, torch.cat(parts), what)
    expect.holds(input, parts[comm.rank], f"{what}: input")


def all_to_all(
    comm: Communicator, expect: Expect, shape: Shape, dtype: torch.dtype, shift: int = 0
) -> None:
    """Exchange blocks (shape of one block); every pair of ranks has its own bytes."""
    what = f"all_to_all_into {dtype} {shape} shift {shift}"
    whole = (comm.size * shape[0], *shape[1:])
    input, output = (Buffer(whole, dtype, comm.device, shift) for _ in range(2))
    block, ranks = input.nbytes // comm.size, range(comm.size)
    sent = torch.cat([payload(what, comm.rank * comm.size + rank, block) for rank in ranks])
    received = torch.cat([payload(what, rank * comm.size + comm.rank, block) for rank in ranks])
    comm.all_to_all_into(output.tensor, input.write(sent))
    expect.holds(output, received, what)
    expect.holds(input, sent, f"{what}: input")


def broadcast(
    comm: Communicator,
    expect: Expect,
    shape: Shape,
    dtype: torch.dtype,
    root: int,
    *,
    shift: int = 0,
) -> None:
    """Copy the root's bytes over those of the others."""
    what = f"broadcast {dtype} {shape} root {root} shift {shift}"
    buffer = Buffer(shape, dtype, comm.device, shift)
    comm.broadcast(buffer.write(payload(what, comm.rank, buffer.nbytes)), root)
    expect.holds(buffer, payload(what, root, buffer.nbytes), what)


def ring(
    comm: Communicator, expect: Expect, shape: Shape, dtype: torch.dtype, shift: int = 0
) -> None:
    """Send to the right and receive from the left, in one group; nothing to do for one rank."""
    if comm.size == 1:
        return
    what = f"send and recv {dtype} {shape} shift {shift}"
    sent, received = (Buffer(shape, dtype, comm.device, shift) for _ in range(2))
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    mine = payload(what, comm.rank, sent.nbytes)
    sent.write(mine)
    with comm.group():
        comm.send(sent.tensor, right)
        comm.recv(received.tensor, left)
    expect.holds(received, payload(what, left, sent.nbytes), what)
    expect.holds(sent, mine, f"{what}: input")


def every_way(
    comm: Communicator, expect: Expect, shape: Shape, dtype: torch.dtype, shift: int = 0
) -> None:
    """Move one shape by each operation."""
    gather(comm, expect, shape, dtype, shift=shift)
    all_to_all(comm, expect, shape or (1,), dtype, shift)
    broadcast(comm, expect, shape, dtype, comm.size - 1, shift=shift)
    ring(comm, expect, shape, dtype, shift)


@rule
def every_dtype_moves(comm: Communicator, expect: Expect) -> None:
    """Bytes arrive as they were, whatever their dtype says."""
    for dtype in dtypes(comm.device):
        every_way(comm, expect, (5,), dtype)


@rule
def scalars_move(comm: Communicator, expect: Expect) -> None:
    """0-d tensors of every dtype are gathered, broadcast, sent and received."""
    for dtype in dtypes(comm.device):
        every_way(comm, expect, (), dtype)


@rule
def outputs_are_stacked_or_joined(comm: Communicator, expect: Expect) -> None:
    """A gather's output is (size, *shape) or concatenated on dim 0, with the same bytes."""
    for shape in SHAPES:
        gather(comm, expect, shape, torch.float32, stacked=True)
        if shape:
            gather(comm, expect, shape, torch.float32, stacked=False)


@rule
def odd_byte_counts_move(comm: Communicator, expect: Expect) -> None:
    """No byte is lost or added where counts fit no word."""
    for count in ODD_BYTE_COUNTS:
        every_way(comm, expect, (count,), torch.uint8)


@rule
def unaligned_slices_move(comm: Communicator, expect: Expect) -> None:
    """Tensors need not start where an allocation does."""
    for dtype in SHIFTED:
        for shift in (1, 3):
            every_way(comm, expect, (7,), dtype, shift)


@rule
def large_tensors_move(comm: Communicator, expect: Expect) -> None:
    """A mebibyte and three bytes from every rank."""
    every_way(comm, expect, (LARGE_BYTES,), torch.uint8)


@rule
def empty_tensors_move_nothing(comm: Communicator, expect: Expect) -> None:
    """Numel 0 is legal everywhere and leaves everything as it is."""
    for shape in ((0,), (0, 4), (3, 0)):
        gather(comm, expect, shape, torch.float32, stacked=True)
        gather(comm, expect, shape, torch.float32, stacked=False)
        every_way(comm, expect, shape, torch.int64)


@rule
def slots_follow_rank_order(comm: Communicator, expect: Expect) -> None:
    """Slot r holds rank r's data, call after call, in the order of the calls."""
    for turn in range(20):
        slots = torch.full((comm.size, 2), -1, dtype=torch.int32, device=comm.device)
        own = torch.tensor([comm.rank, turn], dtype=torch.int32, device=comm.device)
        comm.all_gather_into(slots, own)
        expect.equal(slots.tolist(), [[rank, turn] for rank in range(comm.size)], "slots")


@rule
def gathers_in_place(comm: Communicator, expect: Expect) -> None:
    """The input may be exactly this rank's slot of the output."""
    for count in (1, 17, 1009):
        what = f"all_gather_into in place {count}"
        whole = Buffer((comm.size, count), torch.uint8, comm.device)
        parts = [payload(what, rank, count) for rank in range(comm.size)]
        slot = whole.tensor[comm.rank]
        slot.copy_(parts[comm.rank])
        comm.all_gather_into(whole.tensor, slot)
        expect.holds(whole, torch.cat(parts), what)


@rule
def blocks_go_where_they_belong(comm: Communicator, expect: Expect) -> None:
    """Block d of rank s becomes block s of rank d, whatever the blocks' shape."""
    for shape in ((1,), (3,), (2, 3), (1, 3, 2)):
        all_to_all(comm, expect, shape, torch.float32)


@rule
def broadcasts_come_from_every_root(comm: Communicator, expect: Expect) -> None:
    """Each rank can be the root; its own tensor stays as it is."""
    for root in range(comm.size):
        for shape in SHAPES:
            broadcast(comm, expect, shape, torch.int16, root)


@rule
def a_chain_of_sends_passes_on(comm: Communicator, expect: Expect) -> None:
    """Send and recv stand alone too: rank 0's bytes go from hand to hand."""
    what = "chain"
    parcel = Buffer((17,), torch.uint8, comm.device)
    parcel.write(payload(what, comm.rank, 17))
    if comm.rank > 0:
        comm.recv(parcel.tensor, comm.rank - 1)
    if comm.rank + 1 < comm.size:
        comm.send(parcel.tensor, comm.rank + 1)
    expect.holds(parcel, payload(what, 0, 17), what)


@rule
def ranks_may_leave_others_out(comm: Communicator, expect: Expect) -> None:
    """A pair talks while the others go on; what all do together still matches afterwards."""
    if comm.size > 1 and comm.rank < 2:
        note = torch.full((3,), comm.rank, dtype=torch.int32, device=comm.device)
        comm.send(note, 1) if comm.rank == 0 else comm.recv(note, 0)
        expect.equal(note.tolist(), [0, 0, 0], "recv")
    gather(comm, expect, (3,), torch.float32)


CHECKS: tuple[Check, ...] = (
    slots_follow_rank_order,
    every_dtype_moves,
    scalars_move,
    outputs_are_stacked_or_joined,
    odd_byte_counts_move,
    unaligned_slices_move,
    large_tensors_move,
    empty_tensors_move_nothing,
    gathers_in_place,
    blocks_go_where_they_belong,
    broadcasts_come_from_every_root,
    a_chain_of_sends_passes_on,
    ranks_may_leave_others_out,
)
