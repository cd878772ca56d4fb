"""A fit as the tables of `dcp_comm.topk.measured` have it, ready to be pasted there."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dcp_comm.cli.bench.model import CPU, EAGER, NO_P2P, P2P, Fitted, ranks_of
from dcp_comm.topk.rates import STEPS, Device, Link

_KINDS = {"P2P": P2P, "NO_P2P": NO_P2P}


def tables(fitted: Fitted, machines: Sequence[Mapping[str, Any]]) -> str:
    """Return assignments, under what they were measured with."""
    parts = [*_machines(machines), *_device(fitted.device)]
    usual = [link for name, link in fitted.links.items() if " " not in name]
    for table, kind in _KINDS.items():
        lines = [
            f"    {ranks_of(each.name)}: {constructor(each)},"
            for each in usual
            if each.name.startswith(kind) and not each.name.endswith(EAGER)
        ]
        parts += [f"{table} = {{", *lines, "}"] if lines else []
    eager = [f"    {constructor(each)}," for each in usual if each.name.endswith(EAGER)]
    return "\n".join([*parts, *(["EAGER = (", *eager, ")"] if eager else [])])


def constructor(link: Link) -> str:
    """Return a link as Python has it."""
    numbers = (link.latency_us, link.bytes_per_us, link.bulk_latency_us, link.bulk_bytes_per_us)
    straight = link == Link(link.name, *numbers[:2])
    return (
        f'Link("{link.name}", {", ".join(f"{each:_}" for each in numbers[: 2 if straight else 4])})'
    )


def _machines(machines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Name what was measured on; once, where several reports are of one machine."""
    names = ("device", "driver", "torch", "nccl")
    lines = [
        f"# {', '.join(f'{name} {machine[name]}' for name in names if machine[name])}"
        for machine in machines
    ]
    yield from dict.fromkeys(lines)


def _device(device: Device | None) -> Iterator[str]:
    if device is None:
        return
    yield f"{'CPU' if device.name == CPU else 'GPU'} = Device("
    yield f'    "{device.name}",'
    for step in STEPS:
        pace = getattr(device, step)
        yield f"    {step}=Pace({pace.start_us}, {pace.keys_per_us:_}),"
    yield ")"
