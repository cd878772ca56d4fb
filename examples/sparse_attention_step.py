"""One step of sparse attention over a sharded cache: ``python examples/sparse_attention_step.py``.

Four ranks run as threads of this process, and one alone for comparison.
"""

import torch

import dcp_comm as dc
from dcp_comm.attention import sparse_attention
from dcp_comm.indexer import write_keys
from dcp_comm.testing import run_ranks

TOKENS, K, HEADS, DIM, PAGE = 1000, 64, 8, 32, 16
LIMITS = dc.IndexerLimits(
    k=K, heads=4, head_dim=DIM, query_rows=1, requests=1, max_model_len=TOKENS, page_size=PAGE
)


def attend(comm: dc.Communicator) -> torch.Tensor:
    """Index, select and attend on one rank; every rank returns the output of all heads."""
    dice = torch.Generator().manual_seed(0)  # what layers before computed, on every rank alike
    index_keys, latents = torch.randn(2, TOKENS, DIM, generator=dice)
    index_q, weights = torch.randn(1, 4, DIM, generator=dice), torch.rand(1, 4, generator=dice)
    q = torch.randn(HEADS, DIM, generator=dice)

    indexer = dc.SparseIndexer(comm, LIMITS, output="slots")
    workspace = dc.Workspace(comm.device)
    indexer.reserve(workspace)  # the profile run: the worst case of prefill and decode
    workspace.lock()

    pages = TOKENS // comm.size // PAGE + 1
    table = torch.randperm(pages, generator=dice).int()[None]  # this rank's own block table
    keys = torch.zeros(pages, PAGE, DIM + 4, dtype=torch.uint8)  # fp8 and a scale a token
    cache = torch.zeros(pages * PAGE, DIM)
    slots = indexer.slots(dc.IndexerBatch([TOKENS], [TOKENS], table))  # -1: another rank's token
    write_keys(keys, index_keys, slots)
    cache[slots[slots >= 0]] = latents[slots >= 0]

    batch = dc.IndexerBatch([TOKENS], [1], table)
    winners = indexer.decode(index_q, weights, keys, batch, workspace)
    out, lse = sparse_attention(
        q[None], cache[:, None], DIM, winners.ids, winners.counts, scale=DIM**-0.5
    )  # MLA: the latents are keys and values; slots need no further translation
    mine = dc.lse_merge(comm, out, lse).out  # of this rank's heads
    everyone = torch.empty(comm.size, *mine.shape)
    comm.all_gather_into(everyone, mine)
    return everyone.transpose(0, 1).reshape(HEADS, DIM)


if __name__ == "__main__":
    alone, *_ = run_ranks(attend, 1)
    for rank, output in enumerate(run_ranks(attend, 4)):
        print(f"rank {rank}: differs by at most {(output - alone).abs().max():.0e} from one rank")
