"""How fast links and devices are, as the model of `dcp_comm.topk.cost` sees them."""

import math
import sys
from dataclasses import dataclass, fields
from typing import TypeGuard

from dcp_comm.checks import check_name
from dcp_comm.errors import CommArgumentError, refusal


def _check_start(of: str, argument: str, value: object, most: float = sys.float_info.max) -> None:
    if not _is_number(value) or not 0 <= value <= most:
        need = "a number of microseconds, at least 0" + ("" if most == math.inf else " and finite")
        raise CommArgumentError(refusal(of, argument, repr(value), need))


def _check_rate(of: str, argument: str, value: object) -> None:
    if not _is_number(value) or not value > 0:
        raise CommArgumentError(refusal(of, argument, repr(value), "a number above 0"))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Link:
    """What connects the ranks.

    Attributes:
        name: How tables call it.
        latency_us: Microseconds of a round that moves nothing.
        bytes_per_us: Bytes a rank receives in a microsecond.
        bulk_latency_us: The same where that is faster: NCCL has a second way for large messages,
            which starts later and moves more.
        bulk_bytes_per_us: Likewise.

    Raises:
        CommArgumentError: The name is empty, a start is below 0 or not finite, or a rate is not
            above 0; only ``bulk_latency_us`` and rates may be infinite.
    """

    name: str
    latency_us: float
    bytes_per_us: float
    bulk_latency_us: float = math.inf
    bulk_bytes_per_us: float = math.inf

    def __post_init__(self) -> None:
        check_name("Link", "name", self.name)
        _check_start("Link", "latency_us", self.latency_us)
        _check_start("Link", "bulk_latency_us", self.bulk_latency_us, most=math.inf)
        _check_rate("Link", "bytes_per_us", self.bytes_per_us)
        _check_rate("Link", "bulk_bytes_per_us", self.bulk_bytes_per_us)

    def us(self, nbytes: float) -> float:
        """Modelled microseconds of a round in which each rank receives so many bytes."""
        few = self.latency_us + nbytes / self.bytes_per_us
        return min(few, self.bulk_latency_us + nbytes / self.bulk_bytes_per_us)


LINKS = {
    link.name: link
    for link in (
        Link("nvlink", 17.0, 320_000.0),  # 8 GPUs of one host
        Link("pcie", 25.0, 22_000.0),
        Link("network", 30.0, 11_000.0),  # 100 Gbit
    )
}
"""For machines that nobody measured."""


@dataclass(frozen=True)
class Pace:
    """How fast a step of a merge is done.

    Attributes:
        start_us: Microseconds on no rows.
        keys_per_us: Keys in a microsecond, K a row however many of them the step looks at.

    Raises:
        CommArgumentError: The start is below 0 or not finite, or the rate is not above 0; it may be
            infinite.
    """

    start_us: float
    keys_per_us: float

    def __post_init__(self) -> None:
        _check_start("Pace", "start_us", self.start_us)
        _check_rate("Pace", "keys_per_us", self.keys_per_us)


@dataclass(frozen=True)
class Device:
    """How fast a rank does the arithmetic.

    Attributes:
        name: How tables call it.
        pack: Making sorted runs of a rank's candidates.
        list: Making of them what `select` takes: lists on GPUs, which stay unsorted, else runs.
        select: Writing the winners of all ranks.
        select_own: Writing this rank's winners of many rows, out of all ranks' runs.
        select_few: The same for few rows, out of what `list` made.
        settle: Finding how long prefixes of all ranks' runs win.
        narrow: The same from splitters and windows, both copied first.
        emit: Writing winners that are known: a prefix of a run, or ids that came back.

    Raises:
        CommArgumentError: The name is empty, or a step is no `Pace`.
    """

    name: str
    pack: Pace
    list: Pace
    select: Pace
    select_own: Pace
    select_few: Pace
    settle: Pace
    narrow: Pace
    emit: Pace

    def __post_init__(self) -> None:
        check_name("Device", "name", self.name)
        for step in STEPS:
            pace = getattr(self, step)
            if not isinstance(pace, Pace):
                raise CommArgumentError(refusal("Device", step, repr(pace), "a Pace"))


STEPS = tuple(each.name for each in fields(Device) if each.type is Pace)
"""What a `Device` has a `Pace` for."""
