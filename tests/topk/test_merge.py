"""What a merge promises beside the right answer: memory, segments, aliases, certificates."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.topk.cases import Case, Outcome, check_merge, logits_of
from tests.topk.scores import KINDS, drawn, drawn_lengths

TARGETS = [(output, order) for output in ("global", "local") for order in ("score", "position")]


def a_case(seed: int = 0, size: int = 3, k: int = 12, rows: int = 13, kind: str = "few") -> Case:
    """A case with ties, short rows and empty ones."""
    rng = np.random.default_rng(seed)
    length = 2 * size * k
    scores, lengths = drawn(kind, rows, length, rng), drawn_lengths(rows, length, k, rng)
    return Case(scores, lengths, size, k, interleave=2, chunk_rows=4, seed=seed)


def same(one: list[Outcome], other: list[Outcome]) -> bool:
    """Whether two runs gave every rank the same."""
    pairs = zip(one, other, strict=True)
    return all(
        np.array_equal(a.ids, b.ids)
        and np.array_equal(a.counts, b.counts)
        and np.array_equal(a.certified, b.certified)
        for a, b in pairs
    )


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_any_case_equals_the_oracle(data: st.DataObject) -> None:
    """Scores from a few drawn floats, so that ties, specials and neighbours meet."""
    floats = st.floats(width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, -70000.0])
    pool = data.draw(st.lists(floats, min_size=1, max_size=6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    size, k = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 40))
    rows, length = data.draw(st.integers(0, 7)), data.draw(st.integers(0, 120))
    output, order = data.draw(st.sampled_from(TARGETS))
    case = Case(
        rng.choice(np.array(pool, dtype=np.float32), (rows, length)),
        drawn_lengths(rows, length, k, rng),
        size,
        k,
        data.draw(st.integers(1, 9)),
        output=output,
        order=order,
        mask_neg_inf=data.draw(st.booleans()),
        chunk_rows=data.draw(st.none() | st.integers(1, 9)),
        segments=tuple(data.draw(st.lists(st.integers(1, 4), max_size=3))),
        tie=data.draw(st.sampled_from(["low", "high", "random"])),
        seed=int(rng.integers(2**31)),
    )
    check_merge(case)


@pytest.mark.parametrize(("output", "order"), TARGETS)
def test_chunks_and_segments_do_not_show(output: str, order: str) -> None:
    """R = 1, 2, T-1, T, T+1, rows one by one, all at once."""
    case = replace(a_case(), output=output, order=order)
    first = check_merge(case)
    for chunk_rows in (1, 2, case.rows - 1, case.rows, case.rows + 1, None):
        for segments in ((), (1,), (5, 2), (case.rows - 1,)):
            again = replace(case, chunk_rows=chunk_rows, segments=segments)
            assert same(first, check_merge(again))


def test_the_number_of_ranks_and_the_deal_do_not_show() -> None:
    """W ranks equal one, and every rank holds the same rows."""
    case = a_case(kind="plateau")
    alone = check_merge(replace(case, size=1))[0].ids
    for size in (2, 3, 5, 8):
        for interleave in (1, 4, 64):
            for got in check_merge(replace(case, size=size, interleave=interleave)):
                assert np.array_equal(got.ids, alone)


def test_permuting_rows_permutes_results() -> None:
    """Rows know nothing of each other."""
    case = a_case(seed=1)
    order = np.random.default_rng(0).permutation(case.rows)
    moved = replace(case, scores=case.scores[order], lengths=case.lengths[order])
    assert np.array_equal(check_merge(case)[0].ids[order], check_merge(moved)[0].ids)


def test_raising_a_loser_above_all_selects_it_first() -> None:
    """And pushes out the last winner only."""
    case = a_case(seed=2, kind="normal")
    case = replace(case, lengths=np.full(case.rows, case.scores.shape[1]))
    before = check_merge(case)[0].ids
    scores = case.scores.copy()
    for row in range(case.rows):
        loser = np.setdiff1d(np.arange(scores.shape[1]), before[row])[0]
        scores[row, loser] = scores[row].max() + 1
        before[row] = [loser, *before[row, :-1]]
    assert np.array_equal(check_merge(replace(case, scores=scores))[0].ids, before)


@pytest.mark.parametrize(("output", "order"), TARGETS)
def test_what_memory_held_before_does_not_show(output: str, order: str) -> None:
    """Scratch and results under four poisons."""
    case = replace(a_case(seed=3), output=output, order=order)
    outcomes = [check_merge(replace(case, poison=byte)) for byte in (0xFF, 0xA5, 0x7F, 0x00)]
    assert all(same(outcomes[0], each) for each in outcomes[1:])


def test_a_small_merge_after_a_big_one_in_the_same_memory() -> None:
    """No id of the first appears in the second."""

    def fn(comm: Communicator) -> list[list[int]]:
        merge = TopKMerge(comm, 8, 40, chunk_rows=16)
        scratch = [torch.empty(spec.shape, dtype=spec.dtype) for spec in merge.specs()]
        out = MergeResult.allocate(40, 8, "cpu")
        ids = torch.arange(8, dtype=torch.int32).repeat(40, 1) + 1000
        merge(torch.rand(40, 8), ids, scratch=scratch, out=out)
        few = torch.full((3, 8), -1, dtype=torch.int32)
        few[1, 5] = 1
        small = out.part(slice(0, 3))
        return merge(torch.ones(3, 8), few, scratch=scratch, out=small).ids.tolist()

    nothing = [-1] * 8
    for rows in run_ranks(fn, 3):
        assert rows == [nothing, [3, 4, 5, *nothing[3:]], nothing]


@pytest.mark.parametrize("output", ["global", "local"])
def test_results_may_overwrite_the_local_ids(output: str) -> None:
    """An engine keeps one buffer: local positions in, winners out, in segments across chunks."""
    case = replace(a_case(seed=4), output=output)

    def fn(comm: Communicator) -> torch.Tensor:
        merge = TopKMerge(comm, case.k, case.rows, interleave=2, output=output, chunk_rows=4)
        scores, ids = (torch.from_numpy(each) for each in case.local_list(comm.rank))
        buffer = ids.int()
        lengths = torch.from_numpy(case.local_lengths(comm.rank))
        spare = MergeResult.allocate(case.rows, case.k, "cpu")
        job = merge.begin(case.rows, out=MergeResult(buffer, spare.counts, spare.certified))
        for rows in (slice(0, 3), slice(3, 10), slice(10, 13)):
            job.pack(scores[rows], buffer[rows], lengths[rows])
        assert job.finish().ids is buffer
        return buffer

    for rank, got in enumerate(run_ranks(fn, case.size)):
        np.testing.assert_array_equal(got.numpy(), case.expected(rank)[0])


def test_scratch_is_one_receive_buffer() -> None:
    """Exactly p * 8 * rows * K bytes, for the worst chunk, whatever merges come."""

    def fn(comm: Communicator) -> list[tuple[str, tuple[int, ...], int]]:
        merges = [TopKMerge(comm, 2048, rows, strategy="gather") for rows in (1, 1024, 8192)]
        merges.append(TopKMerge(comm, 2048, 8192, strategy="gather", chunk_rows=512))
        return [(m.specs()[0].name, m.specs()[0].shape, m.nbytes) for m in merges]

    want = [("gathered", (4, rows, 2048), 4 * 8 * rows * 2048) for rows in (1, 1024, 1024, 512)]
    assert run_ranks(fn, 4) == [want] * 4


def test_locked_workspace_serves_and_moves_what_the_formula_says() -> None:
    """Reserved, locked, and (p - 1) * 8 * K bytes received a row, by the ledger."""
    case = replace(a_case(seed=5, size=4), chunk_rows=5)

    def fn(comm: Communicator) -> tuple[torch.Tensor, int, str]:
        merge = TopKMerge(comm, case.k, 64, interleave=2, strategy="gather", chunk_rows=5)
        workspace = Workspace()
        workspace.reserve(*merge.specs(), owner="merge")
        workspace.lock()
        scores, ids = (torch.from_numpy(each) for each in case.local_list(comm.rank))
        merge.prepare()
        comm.ledger.reset()
        result = merge(scores, ids.int(), workspace=workspace)
        return result.ids, comm.ledger.by_op["all_gather_into"].bytes_received, merge.explain()

    for ids, received, words in run_ranks(fn, 4):
        np.testing.assert_array_equal(ids.numpy(), case.winners)
        assert received == case.rows * 3 * 8 * case.k
        assert f"{3 * 8 * case.k} bytes received a row" in words
        assert words.startswith("gather (asked for)")


@pytest.mark.parametrize("longest", [0, 11, 12, 13, None])
def test_nothing_travels_when_every_token_wins(longest: int | None) -> None:
    """Rows no longer than K need no exchange for output "local", and are certified."""
    case = a_case(seed=6)
    lengths = np.minimum(case.lengths, case.k if longest is None else longest)
    case = replace(case, output="local", lengths=lengths, longest=longest)

    def fn(comm: Communicator, case: Case) -> bool:
        merge = TopKMerge(comm, case.k, case.rows, interleave=2, output=case.output)
        merge.prepare()
        comm.ledger.reset()
        job = merge.begin(case.rows, longest=case.longest)
        scores, ids = (torch.from_numpy(each) for each in case.local_list(comm.rank))
        job.pack(scores, ids.int())
        job.finish()
        return "all_gather_into" in comm.ledger.by_op

    check_merge(case)
    silent = longest is not None and longest <= case.k
    assert run_ranks(fn, case.size, case) == [not silent] * case.size
    both = replace(case, output="global")
    check_merge(both)
    assert run_ranks(fn, case.size, both) == [True] * case.size


@pytest.mark.parametrize("tie", ["high", "random"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_certified_rows_are_exact_whatever_tie_rule_the_lists_used(kind: str, tie: str) -> None:
    """Certified is never true where the other rule changed the set, and often true elsewhere."""
    certified = changed = 0
    for seed in range(6):
        case = replace(a_case(seed=seed, kind=kind, rows=40), tie=tie)
        got = check_merge(case)[0]
        differs = (np.sort(got.ids, axis=1) != np.sort(case.winners, axis=1)).any(axis=1)
        assert not (got.certified & differs).any()
        certified += int(got.certified.sum())
        changed += int(differs.sum())
    assert certified > 0
    if kind in ("equal", "plateau"):
        assert changed > 0


def test_a_rank_may_stand_elsewhere_in_the_interleave() -> None:
    """shard_rank says whose tokens these are; winners come back as that shard's positions."""
    case = replace(a_case(seed=7), output="local")
    places = [2, 0, 1]

    def fn(comm: Communicator) -> torch.Tensor:
        place = places[comm.rank]
        merge = TopKMerge(comm, case.k, case.rows, interleave=2, output="local", shard_rank=place)
        scores, ids = (torch.from_numpy(each) for each in case.local_list(place))
        return merge(scores, ids.int()).ids

    for place, got in zip(places, run_ranks(fn, 3), strict=True):
        np.testing.assert_array_equal(got.numpy(), case.expected(place)[0])


def test_local_topk_and_merge_equal_one_rank_that_has_everything() -> None:
    """End to end with the library's own local top-K, packed rows and row starts."""
    case = a_case(seed=8, kind="specials", size=4)

    def fn(comm: Communicator) -> torch.Tensor:
        logits, starts = logits_of(case, comm.rank, torch.float32)
        lengths = torch.from_numpy(case.local_lengths(comm.rank))
        _, ids = local_topk(logits, case.k, starts, lengths)
        job = TopKMerge(comm, case.k, case.rows, interleave=2, chunk_rows=4).begin(case.rows)
        job.pack_logits(logits, ids, starts, lengths)
        return job.finish().ids

    for got in run_ranks(fn, case.size):
        np.testing.assert_array_equal(got.numpy(), case.winners)


def test_merge_under_inference_mode_and_with_autograd_inputs() -> None:
    """Engines run in inference mode; memory reserved outside serves inside."""
    case = a_case(seed=9)

    def fn(comm: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
        merge = TopKMerge(comm, case.k, case.rows, interleave=2, chunk_rows=4)
        scratch = [torch.empty(spec.shape, dtype=spec.dtype) for spec in merge.specs()]
        scores, ids = (torch.from_numpy(each) for each in case.local_list(comm.rank))
        plain = merge(scores.requires_grad_(), ids.int(), scratch=scratch).ids
        with torch.inference_mode():
            inside = merge(scores, ids.int(), scratch=scratch).ids
        return plain, inside

    for plain, inside in run_ranks(fn, case.size):
        np.testing.assert_array_equal(plain.numpy(), case.winners)
        np.testing.assert_array_equal(inside.numpy(), case.winners)


def test_scratch_and_results_stay_where_they_are() -> None:
    """Two calls of equal shape use the same addresses."""

    def fn(comm: Communicator) -> bool:
        merge = TopKMerge(comm, 4, 8)
        workspace = Workspace()
        workspace.reserve(*merge.specs(), owner="merge")
        workspace.lock()
        out = MergeResult.allocate(8, 4, "cpu")
        ids = torch.arange(4, dtype=torch.int32).repeat(8, 1)
        one = merge(torch.rand(8, 4), ids, workspace=workspace, out=out)
        where = workspace.take(*merge.specs())[0].data_ptr()
        two = merge(torch.rand(8, 4), ids, workspace=workspace, out=out)
        return one is out and two is out and where == workspace.take(*merge.specs())[0].data_ptr()

    assert run_ranks(fn, 2) == [True, True]
