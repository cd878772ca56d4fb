"""Whole merges, ready to be timed: ours by strategy, the seed's, and the rival that splits rows."""

from dataclasses import dataclass

import torch

from dcp_comm.cli.bench import rows
from dcp_comm.cli.bench.baselines import checked
from dcp_comm.cli.bench.inputs import Part, Question
from dcp_comm.cli.bench.report import QUERY_SPLIT
from dcp_comm.cli.bench.seed import CHUNK_ROWS, SeedRoute
from dcp_comm.cli.bench.work import Work
from dcp_comm.communicator import Communicator
from dcp_comm.models import INDEX_KEY_BYTES
from dcp_comm.topk.choice import STRATEGIES
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace

OURS: dict[str, tuple[str, str | None]] = {
    "gather": ("gather", None),
    "owner": ("owner", None),
    "splitter": ("splitter", "all"),
    "splitter/owner": ("splitter", "owner"),
    "auto": ("auto", None),
}
"""Strategy and transport by the name that the model of costs has for them."""

SEED = {f"seed, {CHUNK_ROWS}-row chunks": CHUNK_ROWS, "seed, unchunked": None}


@dataclass(frozen=True)
class Route:
    """One way to merge, prepared on this rank.

    Attributes:
        name: A name of `OURS` or `SEED`, or `QUERY_SPLIT`.
        output: What every rank learns: ``global`` ids, or its ``local`` winners.
        pieces: Pieces of logits that it takes; every piece is the question's rows again.
        work: It.
        scratch_bytes: Bytes that it reserved.
        why: What `TopKMerge.explain` says.
    """

    name: str
    output: str
    pieces: int
    work: Work
    scratch_bytes: int
    why: str = ""


def outputs_of(name: str, outputs: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the outputs that one of `OURS` has."""
    strategy, _ = OURS[name]
    legal = STRATEGIES[strategy].outputs if strategy in STRATEGIES else outputs
    return tuple(each for each in outputs if each in legal)


def ours(
    comm: Communicator,
    question: Question,
    part: Part,
    name: str,
    output: str,
    order: str,
    pieces: int = 1,
    chunk_rows: int | None = None,
) -> Route:
    """Reserve, lock, prepare; collective. A merge takes all pieces and leaves in its own chunks."""
    strategy, transport = OURS[name]
    count, k = question.shape.rows * pieces, question.k
    merge = TopKMerge(
        comm,
        k,
        count,
        strategy=strategy,
        output=output,
        order=order,
        chunk_rows=chunk_rows,
        options=MergeOptions(transport=transport),
    )
    workspace = Workspace(comm.device)
    workspace.reserve(*merge.specs(), owner="merge")
    workspace.lock()
    merge.prepare()
    scratch = workspace.take(*merge.specs())
    out = MergeResult.allocate(count, k, comm.device)

    def call() -> None:
        job = merge.begin(count, scratch=scratch, out=out)
        for _ in range(pieces):
            job.pack_logits(part.logits, part.ids, None, part.lengths)
        job.finish()

    wanted = question.winners if output == "global" else question.own(comm.rank)
    wanted = rows.by_position(wanted) if order == "position" else wanted

    def wrong() -> int:
        every = wanted.repeat(pieces, 1)
        counts = (every >= 0).sum(1)
        return int(((out.ids != every).any(1) | (out.counts != counts)).sum())

    work = Work(f"{name}, {output}", call, [out.ids, out.counts, out.certified], wrong)
    return Route(name, output, pieces, work, workspace.nbytes, merge.explain())


def seed(comm: Communicator, question: Question, part: Part, name: str) -> Route:
    """Return the seed's route, exchange included."""
    route = SeedRoute(part, question.k, SEED[name])

    def call() -> None:
        for chunk in route.chunks():
            packed = route.pack(chunk)
            gathered = route.received(packed)
            comm.all_gather_into(gathered, packed)
            route.select(route.move(gathered), chunk)

    return Route(name, "global", 1, checked(name, call, route, question), route.nbytes)


def query_split(comm: Communicator, question: Question) -> Route:
    """Return what splitting the rows exchanges: all index keys first, the winners' ids at the end.

    Between the two every rank scores and ranks its part of the rows over all tokens: as many scores
    as on the other routes, not timed here. Its winners are found once, by the library's own top-K.
    """
    size, rank, (count, k) = comm.size, comm.rank, question.winners.shape
    tokens, share = -(-question.shape.length // size), -(-count // size)
    own_keys = torch.full((tokens, INDEX_KEY_BYTES), rank, dtype=torch.uint8, device=comm.device)
    own_ids = torch.full((share, k), -1, dtype=torch.int32, device=comm.device)
    mine = local_topk(question.scores[rank * share :][:share], k)[1]
    own_ids[: len(mine)] = mine
    keys = own_keys.new_empty(size, *own_keys.shape)
    ids = own_ids.new_empty(size, *own_ids.shape)

    def call() -> None:
        comm.all_gather_into(keys, own_keys)
        comm.all_gather_into(ids, own_ids)

    def wrong() -> int:
        there = torch.arange(size, device=comm.device, dtype=torch.uint8)[:, None, None]
        lost = int((keys != there).any(2).any(1).sum())
        return lost + rows.differing(ids.flatten(0, 1)[:count], question.winners)

    work = Work(QUERY_SPLIT, call, [keys, ids], wrong)
    return Route(QUERY_SPLIT, "global", 1, work, keys.nbytes + ids.nbytes)
