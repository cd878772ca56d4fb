"""Collectives and merges on buffers that stay where they are, with input that changes."""

from collections.abc import Callable

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace

ROWS, TOKENS, K = 64, 512, 128


class Calls:
    """Every collective on buffers that stay where they are, and what must come out.

    Args:
        comm: Of any size.
        count: Elements of a block.
    """

    def __init__(self, comm: Communicator, count: int) -> None:
        self.comm, self.count = comm, count
        self.gathered, self.slots, self.exchanged, self.blocks, self.summed = (
            torch.zeros(comm.size, count, dtype=torch.int64, device=comm.device) for _ in range(5)
        )
        self.own, self.told, self.scattered, self.sent, self.received = (
            torch.zeros(count, dtype=torch.int64, device=comm.device) for _ in range(5)
        )

    def fill(self, turn: int) -> None:
        """Give every input of this rank new values."""
        mine = self.value(self.comm.rank, turn)
        self.own.fill_(mine)
        self.slots[self.comm.rank].fill_(mine)
        self.blocks.copy_(mine + torch.arange(self.comm.size, device=self.comm.device)[:, None])
        self.summed.copy_(self.blocks)
        self.sent.fill_(mine)
        self.told.fill_(mine)

    def make(self) -> None:
        """Make every call once, two of them in place and two in a group."""
        comm, rank, size = self.comm, self.comm.rank, self.comm.size
        comm.all_gather_into(self.gathered, self.own)
        comm.all_gather_into(self.slots, self.slots[rank])
        comm.all_to_all_into(self.exchanged, self.blocks)
        comm.reduce_scatter_into(self.scattered, self.blocks)
        comm.all_reduce(self.summed, "max")
        comm.broadcast(self.told, size - 1)
        with comm.group():
            comm.send(self.sent, (rank + 1) % size)
            comm.recv(self.received, (rank - 1) % size)

    def wrong(self, turn: int) -> Tensor:
        """How many of the results are wrong, on the GPU."""
        comm, size, count = self.comm, self.comm.size, self.count
        values = torch.tensor([self.value(rank, turn) for rank in range(size)], device=comm.device)
        column, ranks = values[:, None].expand(size, count), torch.arange(size, device=comm.device)
        checks = [
            self.gathered == column,
            self.slots == column,
            self.exchanged == column + comm.rank,
            self.scattered == values.sum() + size * comm.rank,
            self.summed == (values.max() + ranks)[:, None],
            self.told == values[-1],
            self.received == values[comm.rank - 1],
        ]
        return torch.stack([(~check).any() for check in checks]).sum()

    def value(self, rank: int, turn: int) -> int:
        """What a rank brings in a turn."""
        return 1000 * turn + 17 * rank


class Merges:
    """A gather merge in reserved memory, on rows whose scores can change in place."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.scores = torch.empty(ROWS, K, device=comm.device)
        self.ids = torch.empty(ROWS, K, dtype=torch.int32, device=comm.device)
        self.merge = TopKMerge(comm, K, ROWS, strategy="gather", chunk_rows=ROWS // 2)
        self.merge.prepare()
        workspace = Workspace(comm.device)
        workspace.reserve(*self.merge.specs(), owner="merge")
        workspace.lock()
        self.scratch = workspace.take(*self.merge.specs())
        self.out = MergeResult.allocate(ROWS, K, comm.device)

    def fill(self, turn: int) -> Tensor:
        """Draw rows, keep this rank's part, and return the winners' ids of the whole."""
        numbers = torch.Generator(device=self.comm.device).manual_seed(turn)
        rows = torch.randint(-50, 50, (ROWS, TOKENS), device=self.comm.device, generator=numbers)
        mine = rows[:, self.comm.rank :: self.comm.size].float()
        scores, ids = local_topk(mine, K)
        self.scores.copy_(scores)
        self.ids.copy_(ids)
        return rows.sort(dim=1, descending=True, stable=True).indices[:, :K]

    def run(self) -> None:
        """Merge what is there."""
        self.merge(self.scores, self.ids, scratch=self.scratch, out=self.out)


def captured(make: Callable[[], object], pool: object = None) -> torch.cuda.CUDAGraph:
    """A graph of calls."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]
        make()
    return graph
