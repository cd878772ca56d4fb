"""The way from a rank's logits to the winners: find candidates, offer them, merge.

`OURS` is the library's way. A published mistake is the same way with one of the stages replaced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from dcp_comm.cli.demo.scoring import Logits
from dcp_comm.communicator import Communicator
from dcp_comm.sharding import Shard
from dcp_comm.topk.job import MergeJob
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.workspace import Workspace


@dataclass(frozen=True)
class Setup:
    """What a rank's stages work with.

    Attributes:
        comm: The ranks among which the tokens are dealt.
        shard: This rank's place in the deal.
        k: Winners a row.
        rows: Rows of the step, all segments together.
        merge: The merge, prepared.
        workspace: Its scratch, reserved and locked.
    """

    comm: Communicator
    shard: Shard
    k: int
    rows: int
    merge: TopKMerge
    workspace: Workspace


@dataclass(frozen=True)
class Candidates:
    """A rank's own top-K of one segment: scores float32 (m, K), ids int32 (m, K), local."""

    logits: Logits
    scores: Tensor
    ids: Tensor


FindStage = Callable[[Setup, Logits], Candidates]
OfferStage = Callable[[Setup, Candidates], Candidates]
MergeStage = Callable[[Setup, Sequence[Candidates]], Tensor]


def find(setup: Setup, logits: Logits) -> Candidates:
    """Take the rank's own top-K: score descending, then position ascending."""
    scores, ids = local_topk(logits.scores, setup.k, logits.starts, logits.lengths - logits.first)
    return Candidates(logits, scores, ids.where(ids < 0, ids + logits.first))


def offer(_: Setup, found: Candidates) -> Candidates:
    """Put all of them up for the merge."""
    return found


def merge(setup: Setup, offers: Sequence[Candidates]) -> Tensor:
    """Merge segment by segment, in reserved memory; int32 (rows, K) global ids."""
    job = setup.merge.begin(setup.rows, workspace=setup.workspace)
    return pack(job, offers).finish().ids


def pack(job: MergeJob, offers: Sequence[Candidates]) -> MergeJob:
    """Hand all segments to a merge under way."""
    for each in offers:
        logits = each.logits
        job.pack_logits(logits.scores, each.ids, logits.starts - logits.first, logits.lengths)
    return job


@dataclass(frozen=True)
class Way:
    """From logits to the ids that are selected, int32 (rows, any width), -1 for none."""

    find: FindStage = find
    offer: OfferStage = offer
    merge: MergeStage = merge

    def found(self, setup: Setup, segments: Sequence[Logits]) -> list[Candidates]:
        """Run the first stage."""
        return [self.find(setup, logits) for logits in segments]

    def merged(self, setup: Setup, found: Sequence[Candidates]) -> Tensor:
        """Run the other two."""
        return self.merge(setup, [self.offer(setup, each) for each in found])


OURS = Way()
