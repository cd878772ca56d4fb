"""The tests bite: each known mistake, put into the product, fails the checks that guard it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, DcpCommError
from dcp_comm.kernels import torch_ops as ops
from dcp_comm.kernels import torch_topk
from dcp_comm.specs import BufferSpec
from dcp_comm.testing import run_ranks
from dcp_comm.topk import keys
from dcp_comm.topk.arguments import Refuse
from dcp_comm.topk.gather import Gather
from dcp_comm.topk.job import MergeJob
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.workspace import Workspace
from tests import oracle
from tests.topk.cases import Case, check_merge, select_lists
from tests.topk.local_cases import check_local
from tests.topk.scores import drawn

Patch = pytest.MonkeyPatch


def a_case(kind: str, **changes: Any) -> Case:
    """Nine rows in chunks of four over three ranks; the last row is short."""
    rng = np.random.default_rng(5)
    lengths = np.array([70] * 8 + [6])
    return replace(Case(drawn(kind, 9, 70, rng), lengths, 3, 8, 2, chunk_rows=4), **changes)


def larger_id_first(module: Any) -> Callable[[Patch], None]:
    """Flip the tie rule of one stage, and nothing else."""

    def encode(scores: Tensor, ids: Tensor, *, mask_neg_inf: bool) -> Tensor:
        right = keys.encode(scores, ids, mask_neg_inf=mask_neg_inf)
        return torch.where(right == keys.PAD, right, (right >> 32 << 32) | (ids + 1))

    def mutate(patch: Patch) -> None:
        patch.setattr(module, "encode", encode)
        patch.setattr(module, "ids_of", lambda flipped: (flipped & 0xFFFFFFFF) - 1)

    return mutate


def same(tensor: Tensor) -> Tensor:
    """Change nothing."""
    return tensor


def encoding(
    scores: Callable[[Tensor], Tensor] = same,
    ids: Callable[[Tensor], Tensor] = same,
    masked: bool = True,
) -> Callable[[Patch], None]:
    """Encode other scores or other ids."""

    def encode(right_scores: Tensor, right_ids: Tensor, *, mask_neg_inf: bool) -> Tensor:
        return keys.encode(
            scores(right_scores), ids(right_ids), mask_neg_inf=mask_neg_inf and masked
        )

    return lambda patch: patch.setattr(ops, "encode", encode)


def without(name: str, position: int) -> Callable[[Patch], None]:
    """Drop one positional argument of a pack."""
    right = getattr(ops, name)

    def pack(*args: Any, **options: Any) -> None:
        right(*args[:position], None, *args[position + 1 :], **options)

    return lambda patch: patch.setattr(ops, name, pack)


def unsorted_lists(patch: Patch) -> None:
    """Select from lists as if they were sorted."""
    select_lists(patch)
    patch.setattr(ops, "sort_lists", same)


def reversed_slots(patch: Patch) -> None:
    """Deliver slots in the wrong order."""
    right = Communicator.all_gather_into

    def wrong(self: Communicator, output: Tensor, input: Tensor) -> None:
        right(self, output, input)
        output.copy_(output.flip(0))

    patch.setattr(Communicator, "all_gather_into", wrong)


def lost_rank(patch: Patch) -> None:
    """Forget what the last rank sent."""
    right = Communicator.all_gather_into

    def wrong(self: Communicator, output: Tensor, input: Tensor) -> None:
        right(self, output, input)
        output[-1] = keys.PAD

    patch.setattr(Communicator, "all_gather_into", wrong)


def skipped_last_chunk(patch: Patch) -> None:
    """Leave the last, shorter chunk out."""
    right = Gather.merge

    def wrong(self: Gather, scratch: Any, out: Any) -> None:
        if out.rows == 4:
            right(self, scratch, out)

    patch.setattr(Gather, "merge", wrong)


def no_exchange(patch: Patch) -> None:
    """Every rank believes its own list."""
    patch.setattr(Communicator, "all_gather_into", lambda self, output, own: None)


def chunks_by_rank(patch: Patch) -> None:
    """One rank cuts its rows elsewhere."""
    right = MergeJob.__init__

    def wrong(self: MergeJob, strategy: Any, chunk_rows: int, *args: Any) -> None:
        rank = strategy.problem.comm.rank
        right(self, strategy, chunk_rows - (rank == 0), *args)

    patch.setattr(MergeJob, "__init__", wrong)


def fewer_candidates(patch: Patch) -> None:
    """Send K / p candidates a rank."""
    right = ops.pack

    def wrong(run: Tensor, *args: Any, **options: Any) -> None:
        right(run, *args, **options)
        run[:, run.shape[1] // 3 + 1 :] = keys.PAD

    patch.setattr(ops, "pack", wrong)


def replaced(name: str, wrong: Callable[..., Any]) -> Callable[[Patch], None]:
    """Put ``wrong(right, *args)`` in the place of a primitive."""
    right = getattr(ops, name)
    return lambda patch: patch.setattr(
        ops, name, lambda *args, **options: wrong(right, *args, **options)
    )


def check_ties_of_local_topk() -> None:
    """A plateau longer than k."""
    check_local(torch.zeros(2, 9), 3, np.zeros(2, dtype=int), np.full(2, 9))


def check_scores_that_lie_in_the_workspace() -> None:
    """Taken before the merge takes its scratch from the same place: refused, or harmless."""
    rows, k = 3 * ops.BLOCK_ROWS, 4

    def fn(comm: Communicator) -> Tensor | None:
        workspace = Workspace()
        merge = TopKMerge(comm, k, rows)
        workspace.reserve(*merge.specs(), owner="merge")
        workspace.lock()
        (scores,) = workspace.take(BufferSpec("scores", (rows, k), torch.float32))
        scores.copy_(torch.arange(rows * k).view(rows, k) % 7)
        ids = torch.arange(k, dtype=torch.int32).repeat(rows, 1)
        try:
            return merge(scores, ids, workspace=workspace).ids
        except CommArgumentError:
            return None

    scores = (np.arange(rows * k).reshape(rows, k) % 7).astype(np.float32)
    want, _ = oracle.topk(scores, [k] * rows, k)
    for got in run_ranks(fn, 1):
        assert got is None or np.array_equal(got.numpy(), want)


def merging(case: Case) -> Callable[[], object]:
    """The check of nearly all: one case against the oracle."""
    return lambda: check_merge(case)


MUTATIONS: dict[str, tuple[Callable[[Patch], None], Callable[[], object]]] = {
    "tie rule flipped in the merge": (larger_id_first(ops), merging(a_case("equal"))),
    "tie rule flipped in the local stage": (larger_id_first(torch_topk), check_ties_of_local_topk),
    "row_start dropped": (
        without("pack_logits", 3),
        merging(a_case("normal", logits=torch.float32)),
    ),
    "length clamp removed": (without("pack", 3), merging(a_case("normal"))),
    "length clamp removed from logits": (
        without("pack_logits", 4),
        merging(a_case("normal", logits=torch.float32)),
    ),
    "gather slots reversed": (reversed_slots, merging(a_case("normal", output="local"))),
    "one rank's candidates lost": (lost_rank, merging(a_case("normal"))),
    "last chunk skipped": (skipped_last_chunk, merging(a_case("normal"))),
    "nothing exchanged": (no_exchange, merging(a_case("normal", poison=0x00))),
    "ids cast to float32": (
        encoding(ids=lambda ids: ids.float().long()),
        merging(a_case("normal", rounds=2**24)),
    ),
    "-1 turned into 0": (
        replaced("ids_of", lambda right, each: right(each).clamp(min=0)),
        merging(a_case("normal")),
    ),
    "reservation split in two": (
        lambda patch: patch.setattr(Refuse, "if_overlapping", lambda *args: None),
        check_scores_that_lie_in_the_workspace,
    ),
    "chunk count by rank": (chunks_by_rank, merging(a_case("normal"))),
    "K / p candidates a rank": (fewer_candidates, merging(a_case("equal"))),
    "NaN wins": (
        encoding(scores=lambda scores: scores.nan_to_num(nan=torch.inf)),
        merging(a_case("specials", k=40)),
    ),
    "-0.0 below 0.0": (
        encoding(scores=lambda s: torch.where((s == 0) & s.signbit(), -1e-45, s)),
        merging(a_case("plateau")),
    ),
    "-inf wins": (encoding(masked=False), merging(a_case("specials", k=70))),
    "prefixes one short": (
        replaced("prefix_lengths", lambda right, runs, t: right(runs, t - 1)),
        merging(a_case("normal")),
    ),
    "runs not sorted": (
        replaced("_write", lambda right, run, encoded, ordered: right(run, encoded, False)),
        merging(a_case("normal")),
    ),
    "lists taken for runs": (unsorted_lists, merging(a_case("normal"))),
    "certificate always given": (
        replaced("certify", lambda right, runs, x: torch.ones_like(x, dtype=torch.bool)),
        merging(a_case("equal", tie="high")),
    ),
    "order ignored": (
        replaced(
            "emit",
            lambda right, *args, by_position, **rest: right(*args, by_position=False, **rest),
        ),
        merging(a_case("normal", order="position")),
    ),
    "global ids where local ones were asked for": (
        replaced("emit", lambda right, *args, shard, **rest: right(*args, shard=None, **rest)),
        merging(a_case("normal", output="local")),
    ),
}


def catch(mutate: Callable[[Patch], None], check: Callable[[], object], patch: Patch) -> None:
    """The check passes as things are, and fails with the mistake."""
    check()
    with patch.context() as mutated:
        mutate(mutated)
        with pytest.raises((AssertionError, DcpCommError)):
            check()
    check()


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_mistake_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catch(*MUTATIONS[name], monkeypatch)
