"""Merges of several groups of ranks side by side, and as processes over gloo when run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.distributed as dist

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.workspace import Workspace
from tests.processes import report
from tests.topk.cases import Case
from tests.topk.scores import drawn, drawn_lengths

WAYS = [("global", "gather"), ("global", "owner"), ("local", "splitter"), ("local", "auto")]
SEGMENT_ROWS = 3


@dataclass(frozen=True)
class Member:
    """One rank's place in one group, and what that group merges."""

    comm: Communicator
    case: Case

    def columns(self) -> list[torch.Tensor]:
        """Scores, positions and lengths of this rank's tokens."""
        scores, ids = self.case.local_list(self.comm.rank)
        lengths = self.case.local_lengths(self.comm.rank)
        return [torch.from_numpy(scores), torch.from_numpy(ids).int(), torch.from_numpy(lengths)]


def a_case(seed: int, size: int, output: str, strategy: str) -> Case:
    """Rows with ties, short and empty ones; other rows for every seed."""
    rng, rows, k = np.random.default_rng(seed), 10 + seed % 3, 12
    scores, lengths = drawn("few", rows, 90, rng), drawn_lengths(rows, 90, k, rng)
    case = Case(scores, lengths, size, k, interleave=1 + seed % 2, output=output, chunk_rows=4)
    return replace(case, strategy=strategy)


def merge_side_by_side(members: Sequence[Member]) -> None:
    """Merge for each group, the segments taking turns, in memory taken together.

    Raises:
        AssertionError: A result is not what an unsharded top-K selects.
    """
    merges = [
        TopKMerge(
            member.comm,
            member.case.k,
            member.case.rows,
            interleave=member.case.interleave,
            strategy=member.case.strategy,
            output=member.case.output,
            chunk_rows=member.case.chunk_rows,
        )
        for member in members
    ]
    workspace, specs = Workspace(), [merge.specs() for merge in merges]
    workspace.reserve(*(spec for each in specs for spec in each), owner="all groups")
    workspace.lock()
    views = iter(workspace.take(*(spec for each in specs for spec in each)))
    jobs = [
        merge.begin(member.case.rows, scratch=[next(views) for _ in each])
        for member, merge, each in zip(members, merges, specs, strict=True)
    ]
    columns = [member.columns() for member in members]
    for first in range(0, max(member.case.rows for member in members), SEGMENT_ROWS):
        rows = slice(first, first + SEGMENT_ROWS)
        for job, (scores, ids, lengths) in zip(jobs, columns, strict=True):
            job.pack(scores[rows], ids[rows], lengths[rows])
    for member, job in zip(members, jobs, strict=True):
        result, (winners, counts) = job.finish(), member.case.expected(member.comm.rank)
        np.testing.assert_array_equal(result.ids.numpy(), winners)
        np.testing.assert_array_equal(result.counts.numpy(), counts)


def main() -> None:
    """Four ranks as two groups of the application's, and a draft group of three beside them."""
    dist.init_process_group("gloo")
    world = dc.from_process_group(timeout=30)
    group = [dist.new_group([0, 1]), dist.new_group([3, 2])][world.rank // 2]
    assert isinstance(group, dist.ProcessGroup)
    target = dc.from_process_group(group, timeout=30)
    draft = world.split(0 if world.rank < 3 else None)
    for number, (output, strategy) in enumerate(WAYS):
        members = [Member(target, a_case(10 * number + world.rank // 2, 2, output, strategy))]
        if draft is not None:
            members.append(Member(draft, a_case(100 + number, 3, output, strategy)))
        merge_side_by_side(members)
        report(topic=f"{output} {strategy}", merges=len(members))
    report(topic="places", target=target.where, draft=draft.where if draft else None)
    world.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
