"""What is reserved is what is used, and what travels is what the table says."""

import math
from collections.abc import Iterator

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.specs import BufferSpec
from dcp_comm.testing import run_ranks
from dcp_comm.topk.cost import schemes
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.workspace import Workspace
from tests.topk.cases import poisoned

K = 2048
ALL, OWNER = MergeOptions("all"), MergeOptions("owner")
KINDS = {
    "gather": ("gather", "global", None),
    "gather, local": ("gather", "local", None),
    "owner": ("owner", "global", None),
    "owner, local": ("owner", "local", None),
    "splitter": ("splitter", "local", None),
    "splitter/owner": ("splitter", "local", OWNER),
}
ROUNDS = {
    "gather": 1,
    "gather, local": 1,
    "owner": 2,
    "owner, local": 2,
    "splitter": 2,
    "splitter/owner": 4,
}
MOST = {
    "gather": (16384, 49152, 114688),
    "gather, local": (16384, 49152, 114688),
    "owner": (12288, 18432, 21504),
    "owner, local": (8196, 12294, 14343),
    "splitter": (768, 3840, 13440),
    "splitter/owner": (392, 972, 1694),
}


def merge_of(comm: Communicator, kind: str, k: int, rows: int, chunk: int | None) -> TopKMerge:
    """A merge of one kind."""
    strategy, output, options = KINDS[kind]
    return TopKMerge(
        comm, k, rows, strategy=strategy, output=output, options=options, chunk_rows=chunk
    )


def candidates(rows: int, k: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct positions with random scores."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(rows, k, generator=rng), torch.arange(k, dtype=torch.int32).repeat(rows, 1)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_received_a_row_by_the_ledger(kind: str, size: int) -> None:
    """K = 2048, rows a multiple of p; the certificate is part of it, and nothing else travels."""
    rows = 2 * size

    def fn(comm: Communicator) -> tuple[int, int, str]:
        merge = merge_of(comm, kind, K, rows, None)
        merge.prepare()
        comm.ledger.reset()
        merge(*candidates(rows, K, comm.rank))
        return comm.ledger.bytes_received, comm.ledger.calls, merge.explain()

    most = MOST[kind][(2, 4, 8).index(size)]
    rounds = ROUNDS[kind]
    for received, calls, words in run_ranks(fn, size):
        assert received == rows * most
        assert calls == rounds
        assert f"{rounds} exchanges a chunk of {rows} rows, {most} bytes received a row" in words


@pytest.mark.parametrize(("size", "nbytes"), [(4, 44_056_576), (8, 65_028_096)])
def test_scratch_of_the_splitter(size: int, nbytes: int) -> None:
    """Default chunks of 2048 rows, sorted runs included; a third of vLLM's, a quarter at p = 8."""

    def fn(comm: Communicator) -> tuple[int, int]:
        merge = merge_of(comm, "splitter", K, 8192, None)
        workspace = Workspace()
        workspace.reserve(*merge.specs(), owner="merge")
        return merge.nbytes, workspace.nbytes

    for got, reserved in run_ranks(fn, size):
        assert got == nbytes
        assert nbytes <= reserved < nbytes + 4 * 256


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_formulas_of_scratch(kind: str, size: int) -> None:
    """As the strategies' modules state them, for rows that deal evenly and others; monotone."""
    k = 37
    shape = splitter_shape(k, size)
    moved = 8 * (shape.splitters + shape.window)
    row = {
        "gather": size * 8 * k,
        "gather, local": size * 8 * k,
        "owner": 20 * k,
        "owner, local": 16 * k + 16,
        "splitter": size * moved + 8 + 8 * k,
        "splitter/owner": 2 * moved + 16 + 8 * k,
    }[kind]
    dealt = "owner" in kind

    def fn(comm: Communicator) -> list[int]:
        return [merge_of(comm, kind, k, rows, 50).nbytes for rows in range(1, 60)]

    for sizes in run_ranks(fn, size):
        rows = [min(each, 50) for each in range(1, 60)]
        assert sizes == [row * (size * -(-n // size) if dealt else n) for n in rows]
        assert sizes == sorted(sizes)


def memory(specs: tuple[BufferSpec, ...], byte: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Poisoned bytes, and the views of specs in it with 64 bytes before, between and behind."""
    ends = [64]
    for spec in specs:
        ends.append(ends[-1] + -(-spec.nbytes // 8) * 8 + 64)
    whole = poisoned(BufferSpec("all", (ends[-1],), torch.uint8), byte)
    views = [
        whole[at : at + spec.nbytes].view(spec.dtype).view(spec.shape)
        for spec, at in zip(specs, ends, strict=False)
    ]
    return whole, views


def after_a_merge(comm: Communicator, kind: str, k: int, rows: int, byte: int) -> torch.Tensor:
    """What the memory holds when one full chunk was merged."""
    merge = merge_of(comm, kind, k, rows, rows)
    whole, views = memory(merge.specs(), byte)
    merge(*candidates(rows, k, comm.rank), scratch=views)
    return whole


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_every_reserved_byte_is_used_and_no_other(kind: str, size: int) -> None:
    """What memory held before shows between the buffers and nowhere in them."""
    for k, rows in ((37, 11), (5, 1), (64, 12)):
        one, other = (run_ranks(after_a_merge, size, kind, k, rows, byte) for byte in (0x5A, 0xA5))
        specs = run_ranks(lambda comm, n, t: merge_of(comm, kind, n, t, t).specs(), size, k, rows)
        for a, b in zip(one, other, strict=True):
            inside = torch.zeros(len(a), dtype=torch.bool)
            for view in used(specs[0]):
                inside[view] = True
            assert torch.equal(a == b, inside)
            assert (a[~inside] == 0x5A).all()


def used(specs: tuple[BufferSpec, ...]) -> Iterator[slice]:
    """Where `memory` lays the buffers."""
    at = 64
    for spec in specs:
        yield slice(at, at + spec.nbytes)
        at += -(-spec.nbytes // 8) * 8 + 64


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_of_costs_says_the_same(kind: str) -> None:
    """Bytes and scratch of `dcp_comm.topk.cost`, chunk by chunk, rows dealt with padding."""
    k, rows, chunk, size = 37, 29, 6, 4
    found = schemes(k, size, splitter_shape(k, size), KINDS[kind][1])
    scheme = next(each for each in found if each.name == kind.removesuffix(", local"))

    def fn(comm: Communicator) -> tuple[int, int, int]:
        merge = merge_of(comm, kind, k, rows, chunk)
        merge.prepare()
        comm.ledger.reset()
        merge(*candidates(rows, k, comm.rank))
        return comm.ledger.bytes_received, comm.ledger.calls, merge.nbytes

    rounds = scheme.rounds * math.ceil(rows / chunk)
    want = scheme.received_bytes(rows, chunk), rounds, scheme.scratch_bytes(chunk)
    assert run_ranks(fn, size) == [want] * size
