"""Exact global top-K across decode-context-parallel (DCP) ranks, in memory you reserved."""

from dcp_comm import errors, sharding
from dcp_comm.communicator import Communicator
from dcp_comm.launch import from_process_group, init
from dcp_comm.registry import BackendInfo, list_backends
from dcp_comm.workspace import BufferSpec, Workspace

__version__ = "0.1.0"

__all__ = [
    "BackendInfo",
    "BufferSpec",
    "Communicator",
    "Workspace",
    "errors",
    "from_process_group",
    "init",
    "list_backends",
    "sharding",
]
