"""Attention and merge on ranks that share a GPU: ``python -m tests.attention.on_gpu BACKEND``."""

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

import dcp_comm as dc
from dcp_comm.attention import Attended, RowGather, sparse_attention
from dcp_comm.communicator import Communicator
from tests import oracle
from tests.attention.cases import CASES, WAYS, Case, compare, serve
from tests.attention.layer import worst
from tests.nccl.on_gpu import shared_gpu
from tests.nccl.workloads import captured
from tests.processes import report

MLA = Case(2, 70, 40, heads=4, groups=1, key_dim=9, value_dim=5, prefix=True, device="cuda")


def sharing(rank: int) -> dict[str, str]:
    """All ranks on the first GPU; nothing is compared on the side, as in production."""
    return {**shared_gpu(rank), "DCP_COMM_CHECK": "0"}


def cases(size: int) -> Iterator[Case]:
    """Every dtype and base, both ways, whole and in chunks, also with rows without any token."""
    for way in WAYS:
        for case in CASES.values():
            yield replace(case, size=size, heads=4 * size, way=way, device="cuda")
        yield replace(MLA, size=size, heads=4 * size, few=True, tokens=3, way=way, chunk_rows=16)


def compared(comm: Communicator) -> int:
    """How many cases were compared with dense attention in float64."""
    found = list(cases(comm.size))
    for case in found:
        heads = slice(comm.rank * case.kept, (comm.rank + 1) * case.kept)
        compare(case, heads, *serve(comm, case))
    return len(found)


def replayed(comm: Communicator, way: str) -> bool:
    """Whether attention and merge, captured once, give the eager bits for a changed query."""
    case = replace(MLA, size=comm.size, way=way)
    keys, _, winners, counts = (each.cuda() for each in case.shard(comm.rank))
    q, merge = case.q.cuda(), case.merger(comm)
    scratch = [torch.empty(s.shape, dtype=s.dtype, device="cuda") for s in merge.specs()]
    shapes = (case.rows, case.heads), (case.rows, case.kept)
    mine, out = (Attended.allocate(*s, case.value_dim, case.dtype, "cuda") for s in shapes)

    def make() -> Attended:
        sparse_attention(q, keys, case.value_dim, winners, counts, scale=case.scale, out=mine)
        return merge(*mine, scratch=scratch, out=out)

    make()
    graph = captured(make)
    q.mul_(-0.5)
    graph.replay()
    by_graph = [each.clone() for each in out]
    for each in (*out, *mine):
        each.fill_(7)
    return all(map(torch.equal, by_graph, make()))


def gathered(comm: Communicator) -> bool:
    """Whether every token is where `RowGather.places` says."""
    gather = RowGather(comm, 40, 6, torch.bfloat16, interleave=2)
    rows = torch.arange(240, device="cuda").view(40, 6).bfloat16()
    found: list[bool] = []
    for length in (0, 1, 7, 40):
        mine = rows[list(oracle.deal(length, comm.size, 2)[comm.rank])]
        ids = torch.arange(length, device="cuda")
        every: Tensor = gather(mine, length)[gather.places(ids, length)]
        found.append(torch.equal(every, rows[:length]))
    return all(found)


def main(backend: str) -> None:
    """Report fact after fact."""
    with dc.init(backend, timeout=60) as comm:
        report(topic="cases", fact=compared(comm))
        report(topic="layer", fact=max(worst(comm, way) for way in WAYS))
        report(topic="gathered", fact=gathered(comm))
        report(topic="replayed", fact=[replayed(comm, way) for way in WAYS])


if __name__ == "__main__":
    main(sys.argv[1])
