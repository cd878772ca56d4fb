"""Reserve, lock, then merge whatever comes: ``python examples/reserve_then_lock.py``.

Four ranks run as threads of this process; under torchrun, `dc.init` would give the same
communicator.
"""

import torch

import dcp_comm as dc
from dcp_comm.testing import run_ranks

K, MAX_ROWS, TOKENS = 64, 256, 4000


def serve(comm: dc.Communicator) -> list[str]:
    """Do on one rank what an engine does: profile, lock, then serve steps of any size."""
    merge = dc.TopKMerge(comm, K, MAX_ROWS)
    planes = (
        dc.BufferSpec("scores", (MAX_ROWS, K), torch.float32),
        dc.BufferSpec("ids", (MAX_ROWS, K), torch.int32),
    )
    workspace = dc.Workspace(comm.device)
    workspace.reserve(*planes, *merge.specs(), owner="top-k")  # what must be alive together
    merge.prepare()  # the ranks agree on every option
    workspace.lock()  # the engine may now give all other memory to its KV cache
    said = [str(workspace.report())]

    for rows in (1, MAX_ROWS, 3):
        scores, ids, *scratch = workspace.take(*planes, *merge.specs())
        tokens = dc.sharding.local_length(TOKENS, rank=comm.rank, size=comm.size)
        scores[:rows], ids[:rows] = dc.local_topk(torch.rand(rows, tokens), K)
        result = merge(scores[:rows], ids[:rows], scratch=scratch)
        said.append(f"{rows:4} rows: {int(result.counts.sum()):,} winners")

    try:
        workspace.take(*planes, dc.BufferSpec("more", (1 << 20,), torch.uint8))
    except dc.errors.WorkspaceExhausted as refused:
        said.append(f"refused: {refused}")
    return said


if __name__ == "__main__":
    print("\n".join(run_ranks(serve, 4)[0]))
