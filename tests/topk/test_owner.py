"""Strategy "owner": rows dealt with padding, and the certificate inside the ids."""

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.kernels import torch_ops as ops
from dcp_comm.testing import run_ranks
from dcp_comm.topk.keys import MAX_ID
from dcp_comm.topk.merge import TopKMerge
from tests.topk.cases import Case, check_merge
from tests.topk.scores import drawn, drawn_lengths


@pytest.mark.parametrize("output", ["global", "local"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9])
def test_rows_that_do_not_deal_evenly(rows: int, output: str) -> None:
    """Owners without a row, owners with one row less, a short last chunk, stale memory."""
    rng = np.random.default_rng(rows)
    for chunk_rows in (1, 3, 4, 6, None):
        scores, lengths = drawn("few", rows, 60, rng), drawn_lengths(rows, 60, 8, rng)
        check_merge(
            Case(
                scores,
                lengths,
                4,
                8,
                output=output,
                chunk_rows=chunk_rows,
                strategy="owner",
                poison=0x00,
            )
        )


@pytest.mark.parametrize("order", ["score", "position"])
def test_certificates_travel_in_the_last_id(order: str) -> None:
    """Sealed and unsealed for every kind of last id, in any row stride."""
    last = [-1, -1, 0, 0, 1, 7, MAX_ID - 1, MAX_ID - 1]
    certified = torch.tensor([True, True, True, False, True, False, True, False])
    ids = torch.arange(16, dtype=torch.int32).view(8, 2)[:, :1].repeat(1, 3)
    ids[:, -1] = torch.tensor(last)
    wide = torch.cat([ids, ids], 1)[:, :3]
    ops.seal(wide, certified)
    assert torch.equal(ops.unseal(wide), certified)
    assert torch.equal(wide, ids)


def test_the_largest_id_passes_for_uncertified_and_is_kept() -> None:
    """It has no partner among the negative numbers; the row is still right."""
    ids = torch.full((2, 1), MAX_ID, dtype=torch.int32)
    ops.seal(ids, torch.tensor([True, False]))
    assert ops.unseal(ids).tolist() == [False, False]
    assert ids.tolist() == [[MAX_ID]] * 2


def test_the_last_token_of_all_wins_on_every_rank() -> None:
    """Position 2^31 - 1, alone in its row and beside others."""

    def fn(comm: Communicator) -> list[list[int]]:
        merge = TopKMerge(comm, 2, 2, strategy="owner")
        mine = [[2**30 - 1, -1], [5, 2**30 - 1]] if comm.rank else [[-1, -1], [-1, -1]]
        ids = torch.tensor(mine, dtype=torch.int32)
        return merge(torch.ones(2, 2), ids).ids.tolist()

    assert run_ranks(fn, 2) == [[[MAX_ID, -1], [11, MAX_ID]]] * 2
