"""The check that every test of the top-K kernels uses, and rows that mislead them."""

from dataclasses import dataclass

import numpy as np
import torch

from dcp_comm.kernels.cuda import local
from dcp_comm.kernels.cuda.sources import PACKAGE, Source
from dcp_comm.kernels.dispatch import LocalTopK
from tests import oracle
from tests.kernels.simt.emulator import LITTLE_SHARED, Emulator
from tests.kernels.simt.guards import Guards
from tests.oracle import Ints


@dataclass(frozen=True)
class Call:
    """One call: what is asked of rows of logits.

    Attributes:
        k: Winners a row.
        starts: First columns; None for 0.
        lengths: Columns; None for all.
        mask_neg_inf: Whether -inf never wins.
        parts: How many blocks share a row; 0 for one that does it alone.
    """

    k: int
    starts: torch.Tensor | None = None
    lengths: torch.Tensor | None = None
    mask_neg_inf: bool = True
    parts: int = 0


def emulator(k: int, seed: int) -> Emulator:
    """A small GPU with the kernels for k winners; the larger ones unsanitized, to save time."""
    capacity = 2048 if k <= 2048 else 4096
    unit = Source.read(PACKAGE / f"topk_{capacity}.cu")
    made = Emulator([unit], seed=seed, sanitize=capacity == 2048)
    made.shared_bytes = LITTLE_SHARED
    return made


def winners(logits: torch.Tensor, call: Call) -> Ints:
    """Return the oracle's positions (T, k)."""
    rows, width = logits.shape
    ids = np.full((rows, call.k), -1, dtype=np.int64)
    for row, scores in enumerate(logits.float().numpy()):
        start = 0 if call.starts is None else int(call.starts[row])
        length = width + 99 if call.lengths is None else max(0, int(call.lengths[row]))
        low, high = max(0, start), min(width, start + length)
        if high > low:
            order = oracle.order_of(scores[low:high], mask_neg_inf=call.mask_neg_inf)[: call.k]
            ids[row, : len(order)] = order + (low - start)
    return ids


def scores_of(logits: torch.Tensor, call: Call, ids: Ints) -> torch.Tensor:
    """Return the scores (T, k) of positions: -inf for none, 0.0 for -0.0."""
    starts = np.zeros(len(ids), dtype=np.int64) if call.starts is None else call.starts.numpy()
    padded = np.pad(logits.float().numpy(), ((0, 0), (0, 1)))  # there may be no columns
    columns = np.where(ids < 0, -1, ids + starts[:, None])
    chosen = torch.from_numpy(np.take_along_axis(padded, columns, axis=1))
    chosen = torch.where(chosen == 0, 0.0, chosen)
    return torch.where(torch.from_numpy(ids) < 0, -torch.inf, chosen)


def check(logits: torch.Tensor, call: Call, seed: int = 0, poison: int = 0xA5) -> list[str]:
    """Compare what the kernels write with the oracle's; return what was launched.

    Raises:
        AssertionError: They differ, or something else was written.
    """
    guards, rows = Guards(poison), len(logits)
    scores = guards.empty(rows, call.k, dtype=torch.float32)
    ids = guards.empty(rows, call.k, dtype=torch.int32)
    scratch = guards.empty(rows, call.parts, 2 * call.k + 1, dtype=torch.int64)
    launcher = emulator(call.k, seed)
    columns = (call.starts, call.lengths)
    local.write_topk(
        launcher, scores, ids, logits, *columns, mask_neg_inf=call.mask_neg_inf, scratch=scratch
    )
    guards.check()
    want = winners(logits, call)
    wrong = ids.numpy() != want
    assert not wrong.any(), np.argwhere(wrong)[:5].tolist()
    expected = scores_of(logits, call, want)
    assert torch.equal(scores.view(torch.int32), expected.view(torch.int32))
    return launcher.launches


def outputs(rows: int, k: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and ids to be overwritten, of sevens."""
    scores = torch.full((rows, k), 7.0, device=device)
    return scores, torch.full((rows, k), 7, dtype=torch.int32, device=device)


def found(
    way: LocalTopK,
    logits: torch.Tensor,
    k: int,
    starts: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
    *,
    masked: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores and ids that one way to do it writes."""
    out = outputs(len(logits), k, logits.device)
    way(logits, starts, lengths, masked, out)
    return out


def sampled_vectors(vectors: int, threads: int = 512) -> Ints:
    """Return which groups of four columns the first threshold is estimated from."""
    rounds = min(16, max(1, vectors // (16 * threads)))
    pairs = np.arange(rounds * threads // 2, dtype=np.uint64)
    step = vectors // len(pairs)
    jitter = (pairs * 0x9E3779B9 & 0xFFFFFFFF) * np.uint64(step - 1) >> np.uint64(32)
    first = (pairs * np.uint64(step) + jitter).astype(np.int64)
    return np.stack([first, first + 1], axis=1).ravel()
