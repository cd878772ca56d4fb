"""Exact global top-K across decode-context-parallel (DCP) ranks, in memory you reserved."""

from dcp_comm import errors, sharding
from dcp_comm.adopt import adopt_nccl
from dcp_comm.attention import lse_merge
from dcp_comm.communicator import Communicator
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer
from dcp_comm.launch import from_process_group, init
from dcp_comm.nccl.options import NcclOptions
from dcp_comm.planning import plan
from dcp_comm.registry import BackendInfo, list_backends
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import BufferSpec, Workspace

__version__ = "0.1.0"

__all__ = [
    "BackendInfo",
    "BufferSpec",
    "Communicator",
    "IndexerBatch",
    "IndexerLimits",
    "MergeOptions",
    "MergeResult",
    "NcclOptions",
    "SparseIndexer",
    "TopKMerge",
    "Workspace",
    "adopt_nccl",
    "errors",
    "from_process_group",
    "init",
    "list_backends",
    "local_topk",
    "lse_merge",
    "plan",
    "sharding",
]
