"""This rank's logits: the sparse indexer's score, over the rank's own tokens alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.cli.demo.requests import Part, Segment
from dcp_comm.sharding import Shard

STALE = float(2**24)
"""What stands in columns that a row does not own: larger than any score, to be chosen by nobody."""

_BLOCK_ROWS = 16


@dataclass(frozen=True)
class Logits:
    """One segment on one rank, as an engine hands it over.

    Attributes:
        scores: float32 or bfloat16 (m, N).
        starts: int32 (m,), the column of each row's first token.
        lengths: int32 (m,), local tokens of each row.
        first: Local position of that first token.
    """

    scores: Tensor
    starts: Tensor
    lengths: Tensor
    first: int = 0


def score(segment: Segment, shard: Shard) -> Logits:
    """Score a segment's rows against the tokens that this rank owns."""
    keys = [_own(part.keys, shard) for part in segment.parts]
    scores = keys[0].new_full((segment.rows, sum(map(len, keys))), STALE)
    starts = torch.empty(segment.rows, dtype=torch.int32, device=scores.device)
    row = column = 0
    for part, own in zip(segment.parts, keys, strict=True):
        rows = slice(row, row + len(part.lengths))
        _score_into(scores[rows, column : column + len(own)], part, own)
        starts[rows] = column
        row, column = rows.stop, column + len(own)
    lengths = torch.cat([part.lengths for part in segment.parts])
    return Logits(scores, starts, shard.local_length(lengths))


def _own(keys: Tensor, shard: Shard) -> Tensor:
    count = shard.local_length(len(keys))
    return keys[shard.global_index(torch.arange(count, device=keys.device))]


def _score_into(scores: Tensor, part: Part, keys: Tensor) -> None:
    for first in range(0, len(scores), _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        queries, weights = part.queries[rows], part.weights[rows]
        heads = (queries.flatten(0, 1) @ keys.T).relu_().view(*weights.shape, len(keys))
        scores[rows] = (weights[:, None, :] @ heads)[:, 0]
