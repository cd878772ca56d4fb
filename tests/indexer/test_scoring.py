"""The index score, its tiles, and the seam at which another scorer takes over."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.indexer import IndexerLimits, SparseIndexer, relu_scores, scoring
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import Workspace
from tests import oracle
from tests.indexer.cases import SCALE, Case, a_step, call, compare, shard

LIMITS = IndexerLimits(3, 2, 3, 12, 3, 40, next_n=4, page_size=4, logits_bytes=4 * 20 * 3)


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 5),
    heads=st.integers(1, 5),
    head_dim=st.integers(1, 5),
    tokens=st.integers(0, 9),
    tile=st.sampled_from([1, 2, 7, 1 << 20]),
    seed=st.integers(0, 2**16),
)
def test_relu_scores(
    rows: int, heads: int, head_dim: int, tokens: int, tile: int, seed: int
) -> None:
    """The formula, head by head and token by token, into rows with gaps, whatever the tiles."""
    rng = np.random.default_rng(seed)
    q, weights = rng.integers(-4, 5, (rows, heads, head_dim)), rng.integers(-4, 5, (rows, heads))
    keys = rng.integers(-4, 5, (tokens, head_dim))
    want = np.zeros((rows, tokens))
    for t, h, s in np.ndindex(rows, heads, tokens):
        want[t, s] += weights[t, h] * max(0, int(q[t, h] @ keys[s]))
    logits = torch.full((rows, tokens + 3), torch.nan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "TILE_ELEMENTS", tile)
        arguments = (torch.from_numpy(each).float() for each in (q, weights, keys))
        relu_scores(logits[:, 1 : tokens + 1], *arguments)
    np.testing.assert_array_equal(logits[:, 1 : tokens + 1].numpy(), want)
    assert logits[:, 0].isnan().all()
    assert logits[:, tokens + 1 :].isnan().all()


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_another_scorer_takes_over(path: str) -> None:
    """It gets the rows and keys of one request, scaled weights, and decides alone."""
    step = a_step(path, [21, 0, 9], [4, 1, 2])
    shapes: list[tuple[int, ...]] = []

    def nearest_last(logits: Tensor, q: Tensor, weights: Tensor, keys: Tensor) -> None:
        assert logits.shape == (len(q), len(keys)) == (len(weights), len(keys))
        shapes.append(tuple(logits.shape))
        relu_scores(logits, q, weights, keys)
        assert torch.equal(weights, weights.round(decimals=1))
        logits.neg_()

    def fn(comm: Communicator) -> Tensor:
        indexer = SparseIndexer(comm, LIMITS, "global", scale=SCALE, score=nearest_last)
        run = getattr(indexer, path)
        return run(*shard(step, LIMITS, 2, comm.rank), workspace=Workspace()).ids  # type: ignore[no-any-return]

    want, _ = oracle.topk(-step.scores, step.visible, LIMITS.k)
    for ids in run_ranks(fn, 2):
        np.testing.assert_array_equal(ids.numpy(), want)
    assert sum(rows for rows, _ in shapes) == 2 * 6
    assert max(tokens for _, tokens in shapes) == 11


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_minus_infinity_is_masked_unless_told_otherwise(path: str) -> None:
    """By a scorer that masks every token but the first two."""
    step = a_step(path, [6], [1])

    def masking(logits: Tensor, q: Tensor, weights: Tensor, keys: Tensor) -> None:
        logits.fill_(-torch.inf)
        logits[:, :1] = 1.0

    def fn(comm: Communicator, mask: bool) -> list[int]:
        indexer = SparseIndexer(comm, LIMITS, "global", score=masking, mask_neg_inf=mask)
        result = getattr(indexer, path)(*shard(step, LIMITS, 2, comm.rank), workspace=Workspace())
        return result.ids[0].tolist()  # type: ignore[no-any-return]

    assert run_ranks(fn, 2, True) == [[0, 1, -1]] * 2
    assert run_ranks(fn, 2, False) == [[0, 1, 2]] * 2


def test_inference_mode_and_autograd() -> None:
    """Memory reserved outside serves inside; nothing of a call is part of a graph."""
    steps = a_step("prefill", [21, 9], [4, 1]), a_step("decode", [7], [2])
    case = Case(LIMITS, 2, steps)

    def fn(comm: Communicator) -> None:
        indexer, workspace = case.indexer(comm), Workspace()
        indexer.reserve(workspace)
        workspace.lock()
        for inside in (True, False):
            with torch.inference_mode(inside):
                got = [call(indexer, case, comm, step, workspace) for step in steps]
                pairs = [(each.ids.numpy(), each.counts.numpy()) for each in got]
            compare(case, comm.rank, pairs)
        q, weights, cache, batch = shard(steps[0], LIMITS, 2, comm.rank)
        for each in (q, weights, cache):
            each.requires_grad_()
        ids = indexer.prefill(q, weights, cache, batch, workspace=workspace).ids.numpy()
        np.testing.assert_array_equal(ids, case.expected(steps[0], comm.rank)[0])

    run_ranks(fn, 2)


def test_strided_inputs() -> None:
    """Queries and weights as slices of wider tensors."""
    step = a_step("prefill", [21, 9], [4, 1])
    case = Case(LIMITS, 2, (step,))

    def fn(comm: Communicator) -> None:
        q, weights, cache, batch = shard(step, LIMITS, 2, comm.rank)
        wide = torch.cat([q, q + 1], 2)[..., :3], torch.cat([weights, weights], 1)[:, :2]
        got = case.indexer(comm).prefill(*wide, cache, batch, workspace=Workspace())
        compare(case, comm.rank, [(got.ids.numpy(), got.counts.numpy())])

    run_ranks(fn, 2)


def test_the_same_batch_serves_every_layer() -> None:
    """Its rows are worked out once."""
    step = a_step("decode", [21, 9], [4, 1])
    case = Case(LIMITS, 2, (step, step))

    def fn(comm: Communicator) -> bool:
        indexer, inputs = case.indexer(comm), shard(step, LIMITS, 2, comm.rank)
        batch, got = inputs[-1], []
        for _ in range(2):
            result = indexer.decode(*inputs, workspace=Workspace())
            got.append((result.ids.numpy(), result.counts.numpy()))
        compare(case, comm.rank, got)
        return batch.row_lengths is batch.row_lengths

    assert run_ranks(fn, 2) == [True, True]
