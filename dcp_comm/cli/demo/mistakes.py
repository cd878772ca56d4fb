"""The mistakes that the field has published, each as our own way with one stage replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dcp_comm.cli.demo.inputs import FAR, PLATEAU, SMALL, TEXT, Input
from dcp_comm.cli.demo.published import global_ids, published_merge
from dcp_comm.cli.demo.scoring import Logits
from dcp_comm.cli.demo.stages import Candidates, Setup, Way, find
from dcp_comm.kernels.torch_ops import row_blocks


@dataclass(frozen=True)
class Mistake:
    """One published mistake.

    Attributes:
        title: What is done wrong, in a few words.
        input: Rows on which it shows.
        way: Our way with the mistake in it.
    """

    title: str
    input: Input
    way: Way


def union(setup: Setup, offers: Sequence[Candidates]) -> Tensor:
    """Exchange nothing: every rank attends to its own K. They are gathered here to be judged."""
    return _gathered(setup, global_ids(setup, offers))


def fewer(setup: Setup, found: Candidates) -> Candidates:
    """Offer K / p candidates a rank, as if the winners were spread evenly."""
    ids = found.ids.clone()
    ids[:, -(-setup.k // setup.comm.size) :] = -1
    return replace(found, ids=ids)


def lost(setup: Setup, found: Candidates) -> Candidates:
    """Lose what the last rank offers."""
    is_lost = setup.comm.rank == setup.comm.size - 1
    return replace(found, ids=torch.full_like(found.ids, -1)) if is_lost else found


def larger_first(setup: Setup, logits: Logits) -> Candidates:
    """Among equal scores keep the larger positions; the merge keeps the smaller ones."""
    count = logits.lengths - logits.first
    starts = logits.scores.shape[1] - logits.starts - count
    mirrored = replace(logits, scores=logits.scores.flip(1), starts=starts)
    found = find(setup, mirrored)
    mirror = (logits.first + logits.lengths - 1)[:, None] - found.ids
    return Candidates(logits, found.scores, found.ids.where(found.ids < 0, mirror))


def composite(setup: Setup, offers: Sequence[Candidates]) -> Tensor:
    """Select by ``score * 1e9 - id`` in float64; scores and ids themselves travel exactly."""
    ids = global_ids(setup, offers)
    mine = torch.cat([each.scores for each in offers])
    mine = mine.masked_fill(ids < 0, -torch.inf)
    all_scores, all_ids = (_gathered(setup, each) for each in (mine, ids))
    winners = torch.empty_like(ids)
    for rows in row_blocks(len(ids)):
        keys = all_scores[rows].double() * 1e9 - all_ids[rows]
        winners[rows] = all_ids[rows].gather(1, keys.topk(setup.k, dim=1).indices)
    return winners


def _gathered(setup: Setup, mine: Tensor) -> Tensor:
    """Return every rank's (rows, K) side by side, (rows, p * K)."""
    everyone = mine.new_empty(setup.comm.size, *mine.shape)
    setup.comm.all_gather_into(everyone, mine)
    return everyone.transpose(0, 1).flatten(1)


MISTAKES = {
    "union": Mistake("union of the ranks' own K", TEXT, Way(merge=union)),
    "fewer": Mistake("K / p candidates a rank", TEXT, Way(offer=fewer)),
    "lost-rank": Mistake("one rank's candidates lost", TEXT, Way(offer=lost)),
    "float-ids": Mistake("ids sent as float32 values", FAR, Way(merge=published_merge)),
    "composite": Mistake("score * 1e9 - id in float64", SMALL, Way(merge=composite)),
    "tie-rule": Mistake("tie rule flipped in one stage", PLATEAU, Way(find=larger_first)),
}
