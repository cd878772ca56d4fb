"""Every way in which a merge's bytes travel, and rows for it where all is valid."""

from typing import Any

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions

SCHEMES = [
    ("gather", "global", None),
    ("gather", "local", None),
    ("owner", "global", None),
    ("owner", "local", None),
    ("splitter", "local", "all"),
    ("splitter", "local", "owner"),
]
K = 9

Scheme = tuple[str, str, str | None]


def merge_of(comm: Communicator, scheme: Scheme, rows: int, **options: Any) -> TopKMerge:
    """A merge of one scheme, agreed on."""
    strategy, output, transport = scheme
    settings = MergeOptions(transport=transport) if transport else None
    merge = TopKMerge(
        comm,
        options.pop("k", K),
        rows,
        strategy=strategy,
        output=output,
        options=settings,
        **options,
    )
    merge.prepare()
    return merge


def scratch_of(merge: TopKMerge) -> list[Tensor]:
    """Memory that nobody else uses."""
    return [torch.empty(spec.shape, dtype=spec.dtype) for spec in merge.specs()]


def candidates(rows: int, k: int = K) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, positions and lengths of rows where all is valid."""
    ids = torch.arange(k, dtype=torch.int32).repeat(rows, 1)
    return torch.rand(rows, k), ids, torch.full((rows,), k)
