"""Random programs: any sequence of calls does what a plain model of all ranks' memory does."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks

SIZES = (1, 2, 3, 4)
BLOCK = 2

Memory = npt.NDArray[np.int64]  # (ranks, ranks * BLOCK)
MODEL: dict[str, Callable[[Memory], Memory]] = {
    "sum": lambda memory: memory.sum(0),
    "max": lambda memory: memory.max(0),
    "min": lambda memory: memory.min(0),
}


@dataclass(frozen=True)
class Step:
    """One call on every rank's memory: (size * BLOCK) numbers."""

    op: str
    reduce: str = "sum"
    root: int = 0
    in_place: bool = False


STEPS = st.builds(
    Step,
    op=st.sampled_from(["gather", "exchange", "scatter", "reduce", "broadcast", "ring", "pair"]),
    reduce=st.sampled_from(sorted(MODEL)),
    root=st.integers(0, 3),
    in_place=st.booleans(),
)


def model(memory: Memory, step: Step) -> Memory:
    """What a step makes of all ranks' memory."""
    size, root = len(memory), step.root % len(memory)
    blocks = memory.reshape(size, size, BLOCK)
    ranks, after = np.arange(size), memory.copy().reshape(size, size, BLOCK)
    match step.op:
        case "gather":
            after[:] = blocks[ranks, ranks] if step.in_place else blocks[:, 0]
        case "exchange":
            after[:] = blocks.transpose(1, 0, 2)
        case "scatter":
            target = ranks if step.in_place else np.zeros_like(ranks)
            after[ranks, target] = MODEL[step.reduce](memory).reshape(size, BLOCK)
        case "reduce":
            after[:] = MODEL[step.reduce](memory).reshape(size, BLOCK)
        case "broadcast":
            after[:] = blocks[root]
        case "ring":
            after[:, 0] = np.roll(blocks[:, -1], 1, axis=0)
        case "pair" if size > 1:
            after[(root + 1) % size, 0] = blocks[root, -1]
    return after.reshape(size, -1)


def perform(comm: Communicator, memory: torch.Tensor, step: Step) -> None:
    """The same through a communicator, on this rank's memory."""
    blocks, root = memory.view(comm.size, BLOCK), step.root % comm.size
    match step.op:
        case "gather":
            comm.all_gather_into(blocks, blocks[comm.rank] if step.in_place else blocks[0].clone())
        case "exchange":
            comm.all_to_all_into(memory, memory.clone())
        case "scatter" if step.in_place:
            comm.reduce_scatter_into(blocks[comm.rank], blocks, step.reduce)
        case "scatter":
            output = torch.empty_like(blocks[0])
            comm.reduce_scatter_into(output, blocks, step.reduce)
            blocks[0] = output
        case "reduce":
            comm.all_reduce(memory, step.reduce)
        case "broadcast":
            comm.broadcast(memory, root)
        case "ring" if comm.size == 1:
            blocks[0] = blocks[-1].clone()
        case "ring":
            sent = blocks[-1].clone()
            with comm.group():
                comm.send(sent, (comm.rank + 1) % comm.size)
                comm.recv(blocks[0], (comm.rank - 1) % comm.size)
        case "pair" if comm.size > 1:
            pair(comm, blocks, root)


def pair(comm: Communicator, blocks: torch.Tensor, root: int) -> None:
    """One message, while the other ranks go on."""
    if comm.rank == root:
        comm.send(blocks[-1], (root + 1) % comm.size)
    elif comm.rank == (root + 1) % comm.size:
        comm.recv(blocks[0], root)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SIZES), st.lists(STEPS, max_size=12), st.integers(0, 2**32))
def test_a_program_does_what_its_model_does(size: int, program: list[Step], seed: int) -> None:
    start = np.random.default_rng(seed).integers(-(2**40), 2**40, (size, size * BLOCK))

    def work(comm: Communicator) -> list[int]:
        memory = torch.from_numpy(start[comm.rank].copy())
        for step in program:
            perform(comm, memory, step)
        return memory.tolist()

    wanted = start
    for step in program:
        wanted = model(wanted, step)
    assert run_ranks(work, size) == wanted.tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 4), st.lists(STEPS, min_size=1, max_size=6))
def test_grouped_or_not_is_the_same(size: int, program: list[Step]) -> None:
    """Each step on memory of its own: alone, and all in one group."""
    kinds = ("gather", "exchange", "reduce", "broadcast")
    steps = [step for step in program if step.op in kinds]

    def work(comm: Communicator, *, grouped: bool) -> list[list[int]]:
        memories = [torch.arange(size * BLOCK) + 100 * comm.rank + n for n in range(len(steps))]
        inputs = [memory.clone() for memory in memories]
        if grouped:
            with comm.group():
                for call in zip(memories, inputs, steps, strict=True):
                    separate(comm, *call)
        else:
            for call in zip(memories, inputs, steps, strict=True):
                separate(comm, *call)
        return [memory.tolist() for memory in memories]

    alone = run_ranks(lambda comm: work(comm, grouped=False), size)
    assert run_ranks(lambda comm: work(comm, grouped=True), size) == alone


def separate(comm: Communicator, output: torch.Tensor, input: torch.Tensor, step: Step) -> None:
    """One call that may wait for its group's end."""
    match step.op:
        case "gather":
            comm.all_gather_into(output.view(comm.size, BLOCK), input.view(comm.size, BLOCK)[0])
        case "exchange":
            comm.all_to_all_into(output, input)
        case "reduce":
            comm.all_reduce(output, step.reduce)
        case _:
            comm.broadcast(output, step.root % comm.size)
