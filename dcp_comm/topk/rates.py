"""How fast links and devices are, as the model of `dcp_comm.topk.cost` sees them."""

import math
from dataclasses import dataclass, fields


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
    """

    name: str
    latency_us: float
    bytes_per_us: float
    bulk_latency_us: float = math.inf
    bulk_bytes_per_us: float = math.inf

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
    """

    start_us: float
    keys_per_us: float


@dataclass(frozen=True)
class Device:
    """How fast a rank does the arithmetic.

    Attributes:
        name: How tables call it.
        pack: Making sorted runs of a rank's candidates.
        select: Writing the winners of all ranks' runs.
        select_own: Writing this rank's winners, out of all ranks' runs.
        settle: Finding how long prefixes of all ranks' runs win.
        narrow: The same from splitters and windows, both copied first.
        emit: Writing winners that are known: a prefix of a run, or ids that came back.
    """

    name: str
    pack: Pace
    select: Pace
    select_own: Pace
    settle: Pace
    narrow: Pace
    emit: Pace


STEPS = tuple(each.name for each in fields(Device) if each.type is Pace)
"""What a `Device` has a `Pace` for."""
