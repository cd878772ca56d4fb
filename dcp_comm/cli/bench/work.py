"""What is timed: a call on buffers that stay, and how to tell whether it did what it should."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.cli.bench.timing import Call, Clock, Timing, captured
from dcp_comm.errors import DcpCommError


class WrongRows(DcpCommError):
    """What was to be timed gave a wrong result; its time would mean nothing."""


@dataclass(frozen=True)
class Work:
    """One piece of work, ready to run again and again.

    Attributes:
        name: How errors call it.
        call: Does it, on the current stream.
        outputs: What it must overwrite wholly.
        wrong: How many rows of the outputs are not right, on this rank.
        inexact: How many of the right rows hold other tokens of equal score than the rule of ties
            says; never any of ours.
    """

    name: str
    call: Call
    outputs: Sequence[Tensor]
    wrong: Callable[[], int]
    inexact: Callable[[], int] = lambda: 0


def measure(work: Work, clock: Clock, mode: str, seconds: float) -> Timing:
    """Check one call on poisoned outputs, in the mode that is timed, then time; collective.

    Raises:
        WrongRows: On every rank, if a row is wrong on any.
        CannotCapture: The mode is ``graph``, and it cannot be captured.
    """
    call = captured(work.call, work.name) if mode == "graph" else work.call
    for output in work.outputs:
        poison(output)
    call()
    wrong = clock.slowest([float(work.wrong())])[0]
    if wrong:
        raise WrongRows(f"bench: {work.name}, {mode}: {wrong:.0f} rows are wrong; nothing is timed")
    return clock.time(call, seconds)


def poison(output: Tensor) -> None:
    """Overwrite with what no result holds, certificates aside."""
    if output.dtype is torch.bool:
        output.fill_(True)
    else:
        output.fill_(torch.nan if output.is_floating_point() else torch.iinfo(output.dtype).max - 5)


def transient_bytes(call: Call, device: torch.device) -> int:
    """Return the most that a call allocates meanwhile; 0 on CPU, where nobody counts."""
    if device.type != "cuda":
        call()
        return 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
