"""What is reserved, by value; that it is enough; and what torch allocates beside it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, WorkspaceExhausted
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer, scoring
from dcp_comm.specs import BufferSpec
from dcp_comm.testing import run_ranks
from dcp_comm.topk.result import MergeResult
from dcp_comm.workspace import Workspace
from tests.allocations import Allocations
from tests.indexer.cases import POISONS, Case, a_step, call, compare, poison, shard

MODEL = IndexerLimits(2048, 64, 128, 8192, 32, 786_432, next_n=4)
SMALL = IndexerLimits(3, 2, 3, 12, 3, 40, next_n=2, page_size=4, logits_bytes=4 * 20 * 5)


def specs(limits: IndexerLimits, size: int, path: str) -> dict[str, BufferSpec]:
    """What a path takes, by name."""

    def fn(comm: Communicator) -> tuple[BufferSpec, ...]:
        indexer = SparseIndexer(comm, limits, strategy="gather")
        return indexer.prefill_specs() if path == "prefill" else indexer.decode_specs()

    every = run_ranks(fn, size)
    assert every == [every[0]] * size
    return {spec.name: spec for spec in every[0]}


def need(limits: IndexerLimits, size: int = 2) -> int:
    """Bytes reserved for both paths."""

    def fn(comm: Communicator) -> int:
        workspace = Workspace()
        SparseIndexer(comm, limits).reserve(workspace)
        return workspace.nbytes

    return run_ranks(fn, size)[0]


def test_gathered_keys_are_a_quarter_of_the_unsharded_ones() -> None:
    """max_model_len 786,432 over 4 ranks."""
    shapes = [specs(MODEL, size, "prefill")["keys"].shape for size in (1, 4)]
    assert shapes == [(786_432, 128), (196_608, 128)]


@pytest.mark.parametrize(
    ("length", "interleave", "size", "tokens"),
    [(9, 1, 4, 3), (9, 4, 2, 5), (9, 8, 2, 8), (1, 1, 8, 1), (8, 64, 3, 8), (129, 64, 2, 65)],
)
def test_the_largest_local_length_respects_the_interleave(
    length: int, interleave: int, size: int, tokens: int
) -> None:
    """Place 0 has most; the same is reserved on every rank."""
    limits = replace(SMALL, max_model_len=length, interleave=interleave, page_size=64)
    assert specs(limits, size, "prefill")["keys"].shape == (tokens, 3)


def test_prefill_takes_keys_logits_planes_and_merge_scratch_at_once() -> None:
    """512 MiB of logits, planes of 1024 rows, the merge's 64 MiB."""
    found = specs(MODEL, 4, "prefill")
    assert list(found) == ["keys", "logits", "scores", "ids", "gathered"]
    assert found["logits"].nbytes == 512 << 20
    assert found["scores"].nbytes == found["ids"].nbytes == 1024 * 2048 * 4
    assert found["gathered"].nbytes == 67_108_864


def test_decode_is_bounded_by_its_own_rows() -> None:
    """32 requests of 4 rows, not 8192 rows; keys a tile at a time."""
    found = specs(MODEL, 4, "decode")
    assert found["logits"].shape == (128 * 196_608,)
    assert found["scores"].shape == found["ids"].shape == (128, 2048)
    assert found["keys"].shape == (4096, 128)
    assert found["gathered"].shape == (4, 128, 2048)
    assert found == specs(replace(MODEL, query_rows=1), 4, "decode")


def test_logits_are_no_larger_than_their_rows() -> None:
    """Short contexts do not pay for the bound."""
    limits = replace(MODEL, max_model_len=4096)
    assert specs(limits, 4, "prefill")["logits"].shape == (1024 * 1024,)


def test_both_paths_are_reserved_for_their_owners() -> None:
    """More than nothing at any size, and the larger counts."""
    for size in (1, 2, 8):

        def fn(comm: Communicator) -> None:
            workspace = Workspace()
            indexer = SparseIndexer(comm, SMALL)
            indexer.reserve(workspace)
            owners = dict(workspace.report().owners)
            takes = {}
            for path in ("prefill", "decode"):
                alone = Workspace()
                alone.take(*getattr(indexer, f"{path}_specs")())
                takes[f"indexer {path}"] = alone.nbytes
            assert owners == takes
            assert workspace.nbytes == max(takes.values()) > 0

        run_ranks(fn, size)


@pytest.mark.parametrize("field", ["query_rows", "requests", "next_n", "max_model_len", "k"])
def test_need_is_monotone(field: str) -> None:
    """More of anything never needs less."""
    base = replace(SMALL, query_rows=1, requests=1, next_n=1, logits_bytes=4 * 700)
    values = [1, 2, 3, 5, 40, 600, 1023, 1024, 1025, 1300]
    needs = [need(replace(base, **{field: value})) for value in values]
    assert needs == sorted(needs)
    assert needs[0] < needs[-1]


@pytest.mark.parametrize("rows", [9, 12])
def test_the_lock_after_another_shape_was_warmed_up(rows: int) -> None:
    """Reserved by the limits and not by what came first."""
    steps = a_step("prefill", [4], [4]), a_step("prefill", [40, 7], [rows - 2, 2])

    def fn(comm: Communicator) -> None:
        case = Case(SMALL, 2, steps)
        indexer, workspace = case.indexer(comm), Workspace()
        indexer.reserve(workspace)
        call(indexer, case, comm, steps[0], workspace)
        workspace.lock()
        result = call(indexer, case, comm, steps[1], workspace)
        got = result.ids.numpy(), result.counts.numpy()
        compare(replace(case, steps=steps[1:]), comm.rank, [got])

    run_ranks(fn, 2)


def test_beyond_the_limits_nothing_is_sent() -> None:
    """One row too many, and a workspace reserved for one rank only."""

    def fn(comm: Communicator) -> list[str]:
        case = Case(SMALL, 4, ())
        indexer, workspace = case.indexer(comm), Workspace()
        alone = comm.split(comm.rank)
        assert alone is not None
        short = replace(SMALL, max_model_len=4)
        SparseIndexer(alone, short).reserve(workspace)
        workspace.lock()
        comm.ledger.reset()
        with pytest.raises(CommArgumentError, match="got 13, need at most query_rows = 12"):
            call(indexer, case, comm, a_step("prefill", [40], [13]), workspace)
        for path in ("prefill", "decode"):
            with pytest.raises(WorkspaceExhausted, match=r"need of \d+ bytes"):
                call(indexer, case, comm, a_step(path, [4], [1]), workspace)
        return list(comm.ledger.by_op)

    assert run_ranks(fn, 4) == [[]] * 4


@pytest.mark.parametrize("path", ["prefill", "decode"])
def test_inputs_in_the_same_workspace_are_refused_unread(path: str) -> None:
    """A take aliases every earlier one: q, or the result, would be overwritten under way."""
    step = a_step(path, [9], [2])

    def fn(comm: Communicator) -> None:
        case = Case(SMALL, 2, ())
        indexer, workspace = case.indexer(comm), Workspace()
        indexer.reserve(workspace)
        workspace.lock()
        q, weights, cache, batch = shard(step, SMALL, 2, comm.rank)
        (alias,) = workspace.take(BufferSpec("q", tuple(q.shape), torch.float32))
        alias.copy_(q)
        with pytest.raises(CommArgumentError, match="Take from the workspace together"):
            getattr(indexer, path)(alias, weights, cache, batch, workspace=workspace)
        assert torch.equal(alias, q)
        (ids,) = workspace.take(BufferSpec("ids", (2, 3), torch.int32))
        out = MergeResult(ids, torch.zeros(2, dtype=torch.int32), torch.zeros(2) > 0)
        with pytest.raises(CommArgumentError, match="scratch: got overlaps"):
            getattr(indexer, path)(q, weights, cache, batch, workspace=workspace, out=out)

    run_ranks(fn, 2)


def test_what_memory_held_does_not_show_and_results_are_the_caller_s() -> None:
    """The same bytes under four poisons, in the caller's rows of a larger buffer."""
    steps = a_step("decode", [40, 0, 17], [2, 2, 2], seed=1), a_step("prefill", [33, 9], [7, 2])

    def fn(comm: Communicator, output: str) -> None:
        case = Case(SMALL, 3, steps, output=output, chunk_rows=4)
        indexer, workspace = case.indexer(comm), Workspace()
        indexer.reserve(workspace)
        workspace.lock()
        rows = [slice(0, 6), slice(6, 15)]
        for byte in POISONS:
            wide = torch.full((15, 5), 77, dtype=torch.int32)
            whole = MergeResult(wide[:, :3], wide[:, 3].clone(), torch.zeros(15) > 0)
            for step, part in zip(steps, rows, strict=True):
                poison(workspace, byte)
                out = whole.part(part)
                assert call(indexer, case, comm, step, workspace, out) is out
            poison(workspace, byte)
            ids, counts = whole.ids.numpy(), whole.counts.numpy()
            compare(case, comm.rank, [(ids[part], counts[part]) for part in rows])
            assert (wide[:, 3:] == 77).all()

    for output in ("local", "global"):
        run_ranks(fn, 3, output)


def test_slots_serve_micro_batches_apart() -> None:
    """One reservation, two slots, each with its own arena."""
    step = a_step("prefill", [33, 9], [7, 2])

    def fn(comm: Communicator) -> None:
        case = Case(SMALL, 2, (step,))
        indexer, workspace = case.indexer(comm), Workspace(slots=2)
        indexer.reserve(workspace)
        workspace.lock()
        (other,) = workspace.take(BufferSpec("all", (workspace.nbytes // 2,), torch.uint8))
        other.fill_(0xA5)
        inputs = shard(step, SMALL, 2, comm.rank)
        got = indexer.prefill(*inputs, workspace=workspace.slot(1))
        compare(case, comm.rank, [(got.ids.numpy(), got.counts.numpy())])
        assert (other == 0xA5).all()

    run_ranks(fn, 2)


TEMPORARIES = {
    "many rows": ("prefill", IndexerLimits(64, 4, 8, 700, 2, 40_000), [40_000], [700]),
    "wide rows": ("prefill", IndexerLimits(8, 2, 4, 3, 1, 3_000_000), [3_000_000], [3]),
    "large k": ("prefill", IndexerLimits(2048, 2, 4, 200, 2, 6_000), [6_000, 900], [150, 50]),
    "many heads": ("prefill", IndexerLimits(16, 64, 4, 40, 1, 9_000), [9_000], [40]),
    "decode": ("decode", IndexerLimits(16, 16, 8, 1, 4, 300_000, next_n=4), [300_000] * 4, [4] * 4),
}


def peak(comm: Communicator, name: str, storage: str = "float32") -> tuple[int, int]:
    """Most bytes of temporaries of a call, and the bound that SparseIndexer states."""
    path, limits, lengths, counts = TEMPORARIES[name]
    indexer, workspace = SparseIndexer(comm, limits), Workspace()
    indexer.reserve(workspace)
    workspace.lock()
    indexer.prepare()
    tokens = limits.local_tokens(comm.size)
    pages = -(-tokens // limits.page_size)
    # Seeded: ranks that ask different questions may leave one of them without a winner.
    own, shared = torch.Generator().manual_seed(comm.rank + 1), torch.Generator().manual_seed(0)
    cache = torch.rand(pages, limits.page_size, limits.head_dim, generator=own)
    if storage == "bfloat16":
        cache = cache.bfloat16()
    elif storage == "fp8":  # any bytes will do
        width = limits.head_dim + 4
        cache = torch.full((pages, limits.page_size, width), 0x3C, dtype=torch.uint8)
    table = torch.arange(pages, dtype=torch.int32).repeat(len(lengths), 1)
    batch = IndexerBatch(lengths, counts, table)
    q = torch.rand(batch.rows, limits.heads, limits.head_dim, generator=shared)
    weights = torch.rand(batch.rows, limits.heads, generator=shared)
    out = MergeResult.allocate(batch.rows, limits.k, "cpu")
    with Allocations() as seen:
        getattr(indexer, path)(q, weights, cache, batch, workspace=workspace, out=out)
    assert (out.counts > 0).any()
    blocks = 48 * max(2**20, tokens) + 64 * limits.k * (64 + 8 * comm.size)
    return seen.peak, 128 * batch.rows + blocks


@pytest.mark.parametrize("name", TEMPORARIES)
def test_temporaries_stay_below_the_stated_bound(name: str) -> None:
    """Counted in each rank's thread."""
    for used, stated in run_ranks(peak, 2, name):
        assert 0 < used < stated


@pytest.mark.parametrize("storage", ["bfloat16", "fp8"])
@pytest.mark.parametrize("name", ["many rows", "wide rows"])
def test_they_do_where_keys_are_dequantised(name: str, storage: str) -> None:
    """Block by block."""
    for used, stated in run_ranks(peak, 2, name, storage):
        assert 0 < used < stated


def test_temporaries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is no formality: a scorer without tiles exceeds the bound."""
    monkeypatch.setattr(scoring, "TILE_ELEMENTS", 1 << 40)
    for used, stated in run_ranks(peak, 2, "many rows"):
        assert used > stated


def test_growth_before_the_lock_serves_too() -> None:
    """Without a reservation the first call takes what it needs; later ones take no more."""
    steps = tuple(a_step(path, [40], [1], seed=n) for n, path in enumerate(("decode", "prefill")))

    def fn(comm: Communicator) -> list[int]:
        case, workspace, sizes = Case(SMALL, 2, steps), Workspace(), []
        indexer = case.indexer(comm)
        for step in (*steps, *steps):
            call(indexer, case, comm, step, workspace)
            sizes.append(workspace.nbytes)
        return sizes

    sizes = run_ranks(fn, 2)[0]
    assert sizes[1:] == [sizes[1]] * 3
    assert np.all(np.diff(sizes) >= 0)
