"""The merge that engines run today: vLLM's ``_merge_dcp_topk_global``, all rows at once.

It packs (score, id) as two float32 values, gathers into a second buffer, and copies that into a
third with the ranks side by side: ``(1 + 2p) * 8 * T * K`` bytes a rank.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dcp_comm.cli.demo.stages import Candidates, Setup
from dcp_comm.kernels.torch_ops import row_blocks
from dcp_comm.topk.keys import encode, ids_of

Allocate = Callable[[str, tuple[int, ...], torch.device], Tensor]
"""``(what for, shape, device)`` to a float32 tensor."""


def plain(_: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Allocate without a cap."""
    return torch.empty(shape, dtype=torch.float32, device=device)


def published_merge(
    setup: Setup, candidates: Sequence[Candidates], allocate: Allocate = plain
) -> Tensor:
    """Return int32 (rows, K) global ids, as far as float32 holds them."""
    rows, k, size, device = setup.rows, setup.k, setup.comm.size, setup.comm.device
    packed = allocate("its packed input", (rows, k, 2), device)
    pack(packed, setup, candidates)
    gathered = allocate("its gather", (size, rows, k, 2), device)
    setup.comm.all_gather_into(gathered, packed)
    by_row = allocate("its row-major copy", (rows, size, k, 2), device)
    by_row.copy_(gathered.transpose(0, 1))
    return select(by_row[..., 0].flatten(1), by_row[..., 1].flatten(1), k)


def pack(packed: Tensor, setup: Setup, candidates: Sequence[Candidates]) -> None:
    """Write scores and, as float32 values, global ids to (rows, K, 2)."""
    torch.cat([each.scores for each in candidates], out=packed[..., 0])
    packed[..., 1] = global_ids(setup, candidates)


def global_ids(setup: Setup, candidates: Sequence[Candidates]) -> Tensor:
    """Return int32 (rows, K): the candidates of all segments by their global ids."""
    return setup.shard.global_index(torch.cat([each.ids for each in candidates]))


def select(scores: Tensor, ids: Tensor, k: int) -> Tensor:
    """Return int32 (rows, k): the best of (rows, p * K) candidates, exactly, ids as they came."""
    winners = torch.empty(len(scores), k, dtype=torch.int32, device=scores.device)
    for rows in row_blocks(len(scores)):
        keys = encode(scores[rows], ids[rows].to(torch.int64), mask_neg_inf=True)
        winners[rows] = ids_of(keys.topk(k, dim=1).values)
    return winners
