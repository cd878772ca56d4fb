"""What links and devices were measured to take; strategy ``auto`` and `dcp_comm.plan` go by it.

``dcp-comm bench fit REPORT...`` prints the tables, how far they are from what they were fitted to,
and how often ``auto`` takes the best strategy by them. To refit: ``scripts/bench_nvlink`` on the
GPUs, ``dcp-comm bench merge --json FILE`` on one of them, ``fit`` on all their reports, and what it
prints in place of what stands here. Elsewhere, a `Link` and a `Device` of one's own go into
`TopKMerge` as ``link`` and as ``MergeOptions.device``.

Merges on GPUs are replayed from CUDA graphs, over pynccl. `NO_P2P` is with NCCL_P2P_DISABLE=1, so
that everything goes through the host. `EAGER` is for merges that are called one by one while the
GPU waits: there a round costs as much as the host takes to call it.
"""

import os
from collections.abc import Mapping

import torch

from dcp_comm.topk.rates import LINKS, Device, Link, Pace

# Steps were fitted without the splitter's stages of 4 ranks, which take longer than those of 2.
# device NVIDIA H200, driver 580.159.04, torch 2.11.0+cu130, nccl 2.28.9
GPU = Device(
    "NVIDIA H200",
    pack=Pace(6.04, 81_149.6),
    list=Pace(3.72, 137_847.3),
    select=Pace(5.97, 53_453.4),
    select_own=Pace(22.38, 154_636.5),
    select_few=Pace(7.44, 69_495.9),
    settle=Pace(6.48, 318_780.7),
    narrow=Pace(3.17, 172_830.8),
    emit=Pace(2.52, 218_405.9),
)
P2P = {
    2: Link("p2p-2", 8.9, 118_744.7, 25.94, 268_274.6),
}
NO_P2P = {
    2: Link("no-p2p-2", 11.05, 8_868.2, 20.56, 24_592.7),
}
EAGER = (
    Link("p2p-2-eager", 29.69, 294_498.4),
    Link("no-p2p-2-eager", 34.21, 27_393.8),
)

# device x86_64, torch 2.13.0+cpu: one core and its own time, local parts without an exchange.
# Nothing is left unsorted there: list is pack, select_few is select_own.
CPU = Device(
    "cpu",
    pack=Pace(2600.41, 4.1),
    list=Pace(2600.41, 4.1),
    select=Pace(2187.57, 14.8),
    select_own=Pace(1452.23, 14.4),
    select_few=Pace(1452.23, 14.4),
    settle=Pace(3118.54, 8.2),
    narrow=Pace(4217.3, 19.5),
    emit=Pace(0.0, 1_000_000_000_000.0),
)

NAMED = LINKS | {link.name: link for link in (*P2P.values(), *NO_P2P.values(), *EAGER)}
"""Every link that can be asked for by name."""


def device_of(device: torch.device) -> Device:
    """Return how fast such devices do the arithmetic."""
    return GPU if device.type == "cuda" else CPU


def through_host(environment: Mapping[str, str]) -> bool:
    """Return whether NCCL is told to go through the host between GPUs; empty is not told."""
    return (environment.get("NCCL_P2P_DISABLE") or "0") != "0"


def link_between(
    device: torch.device, size: int, environment: Mapping[str, str] = os.environ
) -> Link:
    """Return what connects so many of these devices, as far as is known without measuring.

    Between GPUs it is that of the next larger group that was measured, or else of the largest,
    through the host where the environment has NCCL go there; between CPUs it is a network.
    """
    if device.type != "cuda":
        return LINKS["network"]
    known = NO_P2P if through_host(environment) else {8: LINKS["nvlink"], **P2P}
    return known[min((n for n in known if n >= size), default=max(known))]
