"""The same rows in four guises: each true to life, each with its own right answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from dcp_comm.cli.demo.reference import Answers
from dcp_comm.cli.demo.scoring import Logits
from dcp_comm.cli.demo.stages import Setup
from dcp_comm.sharding import Shard

FAR_AWAY = 2**24
"""Positions from here on have no exact float32 value each."""

_SCALE = 2.0**-20


@dataclass(frozen=True)
class Input:
    """A guise of the rows.

    Attributes:
        name: What tables call it.
        note: What it is and why, in a sentence.
        disguise: Makes a segment's logits look so.
        level: Whether the answer goes by the scores of a plateau.
        far: Whether all positions lie beyond `FAR_AWAY`.
    """

    name: str
    note: str
    disguise: Callable[[Setup, Logits], Logits]
    level: bool = False
    far: bool = False

    def winners(self, answers: Answers, shard: Shard) -> Tensor:
        """Return int32 (rows, K): the right answer by global id."""
        ids = answers.plateau if self.level else answers.exact
        return ids.where(ids < 0, ids + self.offset(shard))

    def offset(self, shard: Shard) -> int:
        """Return the global id of the text's first token."""
        return _tokens_before(shard) * shard.size if self.far else 0


def _tokens_before(shard: Shard) -> int:
    """Tokens on each rank before the far text: whole stripes, `FAR_AWAY` over all ranks."""
    return -(-FAR_AWAY // (shard.size * shard.interleave)) * shard.interleave


def _as_is(_: Setup, logits: Logits) -> Logits:
    return logits


def _far(setup: Setup, logits: Logits) -> Logits:
    before = _tokens_before(setup.shard)
    return replace(logits, lengths=logits.lengths + before, first=before)


def _small(_: Setup, logits: Logits) -> Logits:
    return replace(logits, scores=logits.scores * _SCALE)


def _plateau(setup: Setup, logits: Logits) -> Logits:
    """Raise the sea to half of each row's highest score, on all ranks alike."""
    columns = torch.arange(logits.scores.shape[1], device=logits.scores.device)
    local = columns - logits.starts[:, None]
    seen = (local >= 0) & (local < logits.lengths[:, None])
    highest = pad(logits.scores.where(seen, 0), (0, 1)).amax(1)
    setup.comm.all_reduce(highest, "max")
    sea = (highest / 2).floor()
    return replace(logits, scores=(logits.scores - sea[:, None]).relu_())


TEXT = Input("text", "the rows as they are", _as_is)
FAR = Input("far", "the text stands behind 2^24 other tokens", _far, far=True)
SMALL = Input("small", "scores times 2^-20: the size of real ones, in the same order", _small)
PLATEAU = Input(
    "plateau", "what is below half of a row's best score is 0, as a ReLU leaves it", _plateau, True
)
INPUTS = (TEXT, FAR, SMALL, PLATEAU)
