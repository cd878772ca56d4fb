"""What a rank under torchrun does before it can time anything: its GPU, the backends, a way in."""

import os

import torch

from dcp_comm.communicator import Communicator
from dcp_comm.launch import from_process_group, init
from dcp_comm.registry import BUILT_IN, list_backends


def own_gpu() -> torch.device:
    """Return this rank's GPU, made the current one; shared where there are fewer than ranks."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def backends(asked: str | None, device: torch.device) -> list[str]:
    """Return the named ones, or all of ours that move this device's tensors and work here."""
    if asked:
        return asked.split(",")
    return [
        info.name
        for info in list_backends()
        if info.available
        and info.name in BUILT_IN
        and info.name != "fake"
        and info.capabilities is not None
        and device.type in info.capabilities.devices
    ]


def connect(name: str, device: torch.device) -> Communicator:
    """Ride on torch's group for "torch", so that both costs are of one communicator."""
    if name == "torch":
        return from_process_group(None, name, device)
    return init(name, device, name=f"bench {name}")
