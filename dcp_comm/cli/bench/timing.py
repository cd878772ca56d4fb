"""How long work takes: medians of many samples, of the slowest rank, within a budget."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import DcpCommError

WANTED = 30
"""Samples of a timing; a budget may leave fewer."""
MODES = ("eager", "graph")
"""Call by call, and replayed from a CUDA graph."""

_LEAST = 3
_SAMPLE_SECONDS = 4e-3
_MOST_CALLS = 32
_WARM_UP, _WARM_SECONDS = 3, 0.2

Call = Callable[[], object]


class CannotCapture(Exception):
    """A call that works cannot be captured in a CUDA graph; says which and why."""


@dataclass(frozen=True)
class Timing:
    """What a `Clock` found.

    Attributes:
        us: Microseconds a call, the median of the samples.
        low: The first decile.
        high: The ninth.
        samples: How many there were.
        calls: Calls in a sample, one after the other.
    """

    us: float
    low: float
    high: float
    samples: int
    calls: int


class Clock:
    """Times work that every rank does together; alone where there is no communicator.

    On CUDA between two events. Short work is timed behind a call that is not counted, so that
    neither the first launch nor a late rank is. A sample is that of the slowest rank. Buffers stay
    where they are: what fits the cache is read from there, as it is behind an exchange.

    Args:
        device: Where the work runs.
        comm: The ranks; None for one.
    """

    def __init__(self, device: torch.device, comm: Communicator | None = None) -> None:
        self._device, self._comm = device, comm

    def time(self, work: Call, seconds: float) -> Timing:
        """Time it for about so long, but at least a few times; collective."""
        once = self.slowest([self._sample(work, 1)])[0]
        for _ in range(min(_WARM_UP, int(min(_WARM_SECONDS, seconds) / once))):
            once = self.slowest([self._sample(work, 1)])[0]
        calls = max(1, min(_MOST_CALLS, int(_SAMPLE_SECONDS / once)))
        count = max(_LEAST, int(min(WANTED, seconds / 2 / (once * (calls + 1)))))
        first = once < _SAMPLE_SECONDS
        samples = [self._sample(work, calls, first=first) / calls for _ in range(count)]
        samples = self.slowest(samples)
        low, *_, high = quantiles(samples, n=10, method="inclusive")
        return Timing(median(samples) * 1e6, low * 1e6, high * 1e6, count, calls)

    def slowest(self, values: Sequence[float]) -> list[float]:
        """Return the largest value of all ranks, place by place; collective."""
        if self._comm is None:
            return list(values)
        worst = torch.tensor(values, dtype=torch.float64, device=self._device)
        self._comm.all_reduce(worst, "max")
        return [float(value) for value in worst.tolist()]

    def _sample(self, work: Call, calls: int, *, first: bool = False) -> float:
        """Seconds of so many calls on this rank, behind one that is not counted if ``first``."""
        self._settle()
        if self._comm is not None:
            self._comm.barrier()
        if first:
            work()
        if self._device.type != "cuda":
            started = time.perf_counter()
            _repeat(work, calls)
            return max(1e-9, time.perf_counter() - started)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        _repeat(work, calls)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class Budget:
    """Seconds for a number of parts: what is left is dealt evenly over the parts that are left.

    Args:
        seconds: For all parts; infinite for as many samples as are wanted.
        parts: How many there are.
        clock: Whose ranks decide together; None for one.
    """

    def __init__(self, seconds: float, parts: int, clock: Clock) -> None:
        self._end, self._parts, self._clock = time.monotonic() + seconds, parts, clock

    def next(self) -> float:
        """Return the seconds of the next part, on the rank that has fewest; 0 or less for none."""
        late = self._clock.slowest([time.monotonic() - self._end])[0]
        self._parts -= 1
        return -late / (self._parts + 1)


def copy_gb_s(device: torch.device) -> float:
    """Return the bytes that a large copy on the device reads and writes in a nanosecond."""
    nbytes = (1 << 31) if device.type == "cuda" else (1 << 25)
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = Clock(device).time(lambda: target.copy_(source), 0.5)
    return 2 * nbytes / timing.us / 1e3


def captured(call: Call, name: str) -> Call:
    """Return the replay of a CUDA graph of one call, warmed up.

    Raises:
        CannotCapture: What the call does cannot be captured.
    """
    call()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    try:
        # Other threads (a watchdog's, a rank's that is ending) may ask the driver meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            call()
    except DcpCommError:
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise CannotCapture(f"{name}: no CUDA graph of it: {reason}") from error
    graph.replay()
    return graph.replay


def _repeat(work: Call, calls: int) -> None:
    for _ in range(calls):
        work()
