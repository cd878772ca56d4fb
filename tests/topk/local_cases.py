"""The one check that every test of `local_topk` uses."""

import numpy as np
import torch

from dcp_comm.topk.local import local_topk
from tests import oracle
from tests.oracle import Ints


def check_local(
    logits: torch.Tensor, k: int, starts: Ints, lengths: Ints, *, mask_neg_inf: bool = True
) -> None:
    """Compare `local_topk` with the oracle, row by row.

    Raises:
        AssertionError: Ids or scores differ.
    """
    first = torch.from_numpy(starts).to(logits.device)
    count = torch.from_numpy(lengths.astype(np.int32)).to(logits.device)
    scores, ids = (each.cpu() for each in local_topk(logits, k, first, count, mask_neg_inf))
    logits = logits.cpu()
    assert ids.shape == scores.shape == (len(logits), k)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        values = logits[row].float().numpy()[start:]
        want, _ = oracle.topk(values[None], [length], k, mask_neg_inf=mask_neg_inf)
        np.testing.assert_array_equal(ids[row].numpy(), want[0])
        chosen = want[0][want[0] >= 0]
        np.testing.assert_array_equal(scores[row, : len(chosen)].numpy(), values[chosen])
        assert (scores[row, len(chosen) :] == -torch.inf).all()
