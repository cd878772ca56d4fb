"""The formulas against the published tables, the library's own buffers, and the ledger."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcp_comm.communicator import Communicator
from dcp_comm.kernels.lemma import best_block, splitter_shape
from dcp_comm.testing import run_ranks
from dcp_comm.topk.choice import STRATEGIES
from dcp_comm.topk.cost import Scheme, schemes
from dcp_comm.topk.measured import GPU, NO_P2P, P2P
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.rates import LINKS, STEPS, Link

SIZES = (2, 4, 8)
NVLINK, PCIE, NETWORK = LINKS["nvlink"], LINKS["pcie"], LINKS["network"]


def scheme(name: str, size: int, k: int = 2048, output: str = "global") -> Scheme:
    found = schemes(k, size, splitter_shape(k, size), output)
    return {each.name: each for each in found}[name]


@pytest.mark.parametrize(
    ("name", "rounds", "received"),
    [
        ("vllm", 1, (16384, 49152, 114688)),
        ("gather", 1, (16384, 49152, 114688)),
        ("owner", 2, (12288, 18432, 21504)),
        ("splitter", 2, (768, 3840, 13440)),
        ("splitter/owner", 4, (392, 972, 1694)),
    ],
)
def test_rounds_and_bytes_received_a_row(
    name: str, rounds: int, received: tuple[int, int, int]
) -> None:
    for size, expected in zip(SIZES, received, strict=True):
        assert scheme(name, size).rounds == rounds
        assert scheme(name, size).received_bytes(8192) == 8192 * expected
        assert scheme(name, size).received_bytes(8192, 1024) == 8192 * expected


@pytest.mark.parametrize(
    ("name", "rows", "scratch"),
    [
        ("vllm", 1024, {4: 150_994_944, 8: 285_212_672}),
        ("vllm", 8192, {4: 1_207_959_552, 8: 2176 << 20}),
        ("gather", 1024, {4: 64 << 20, 8: 128 << 20}),
        ("splitter", 2048, {4: 44_056_576, 8: 65_028_096}),
        ("splitter", 8192, {4: 176_226_304, 8: 260_112_384}),
    ],
)
def test_scratch(name: str, rows: int, scratch: dict[int, int]) -> None:
    for size, expected in scratch.items():
        assert scheme(name, size).scratch_bytes(rows) == expected


@pytest.mark.parametrize(
    ("name", "link", "size", "expected"),
    [
        ("gather", NVLINK, 4, 1275),
        ("gather", NVLINK, 8, 2953),
        ("owner", NVLINK, 4, 506),
        ("owner", NVLINK, 8, 585),
        ("splitter", NVLINK, 4, 132),
        ("splitter", NVLINK, 8, 378),
        ("splitter/owner", NVLINK, 4, 93),
        ("splitter/owner", NVLINK, 8, 111),
    ],
)
def test_modelled_exchange_on_nvlink(name: str, link: Link, size: int, expected: int) -> None:
    assert round(scheme(name, size).exchange_us(8192, link)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gather", 18_300), ("owner", 6_910), ("splitter", 1_480), ("splitter/owner", 460)],
)
def test_modelled_exchange_on_pcie(name: str, expected: int) -> None:
    assert scheme(name, 4).exchange_us(8192, PCIE) == pytest.approx(expected, rel=0.01)


def test_network_is_slowest_and_every_chunk_pays_its_rounds() -> None:
    gather = scheme("gather", 4)
    assert gather.exchange_us(8192, NETWORK) == pytest.approx(30 + 402_653_184 / 11_000)
    chunked = gather.exchange_us(8192, NVLINK, 1024)
    assert chunked - gather.exchange_us(8192, NVLINK) == pytest.approx(7 * 17)


@pytest.mark.parametrize(
    ("link", "sort_us", "rows"),
    [
        (NVLINK, 0, (350, 120, 54)),
        (NVLINK, 10, (550, 190, 85)),
        (PCIE, 0, (35, 12, 5)),
    ],
)
def test_crossover_of_gather_and_splitter(
    link: Link, sort_us: int, rows: tuple[int, int, int]
) -> None:
    for size, expected in zip(SIZES, rows, strict=True):
        gather, splitter = scheme("gather", size), scheme("splitter", size)
        crossover = next(
            count
            for count in range(1, 1000)
            if splitter.exchange_us(count, link) + sort_us < gather.exchange_us(count, link)
        )
        assert crossover == pytest.approx(expected, rel=0.02, abs=1)


def test_the_published_merge_is_as_fast_as_published() -> None:
    """Its kernels, and all of it between two GPUs, with every row in one chunk."""
    assert scheme("vllm", 4).local_us(8192, GPU) == pytest.approx(213 + 396 + 480, rel=0.06)
    assert scheme("vllm", 2).merge_us(8192, NVLINK, GPU) == pytest.approx(1225, rel=0.1)


@pytest.mark.parametrize(
    ("name", "output", "link", "rows", "us"),
    [
        ("gather", "global", P2P[2], 1, 23),
        ("gather", "local", P2P[2], 32, 27),
        ("gather", "local", P2P[2], 1024, 168),
        ("owner", "global", P2P[2], 1024, 178),
        ("splitter", "local", P2P[2], 1, 32),
        ("splitter", "local", P2P[2], 128, 36),
        ("splitter", "local", P2P[2], 8192, 463),
        ("gather", "global", NO_P2P[2], 1024, 778),
        ("owner", "global", NO_P2P[2], 8192, 4963),
        ("splitter/owner", "local", NO_P2P[2], 1024, 149),
    ],
)
def test_whole_merges_are_near_what_was_measured(
    name: str, output: str, link: Link, rows: int, us: int
) -> None:
    """Two GPUs, random scores, replayed from CUDA graphs, with and without peer-to-peer.

    As far off as ``bench fit`` says that it is at most.
    """
    modelled = scheme(name, 2, output=output)
    chunk = min(rows, modelled.chunk_rows)
    assert modelled.merge_us(rows, link, GPU, chunk) == pytest.approx(us, rel=0.3)


def test_chunks_repeat_the_starts_and_not_the_work() -> None:
    owner = scheme("owner", 4)
    again = 7 * sum(getattr(GPU, step).start_us for step in owner.steps)
    once = owner.local_us(8192, GPU)
    assert owner.local_us(8192, GPU, chunk_rows=1024) == pytest.approx(once + again)


def test_owners_select_their_share_of_the_rows_and_emit_all() -> None:
    done = {step: (starts, keys) for step, starts, keys in scheme("owner", 4).done(10, 8)}
    assert done == {"list": (2, 10 * 2048), "select": (2, 3 * 2048), "emit": (2, 10 * 2048)}


def test_large_messages_take_the_way_that_is_faster() -> None:
    link = Link("two ways", 10.0, 1.0, 50.0, 5.0)
    assert [link.us(nbytes) for nbytes in (0, 50, 100)] == [10.0, 60.0, 70.0]
    assert Link("one way", 10.0, 1.0).us(10**6) == pytest.approx(10**6 + 10)


def test_default_blocks() -> None:
    assert [best_block(2048, size) for size in (2, 3, 4, 8)] == [32, 32, 32, 16]
    for size in range(2, 9):
        assert 0.7 <= best_block(2048, size) / math.sqrt(2048 / (size - 1)) <= 1.42


@given(st.integers(1, 4096), st.integers(1, 12), st.integers(1, 512))
def test_the_splitter_settles_what_it_may_and_leaves_the_rest_open(
    k: int, size: int, block: int
) -> None:
    shape = splitter_shape(k, size, block)
    slack = (size - 1) * (block - 1)
    assert (shape.splitters - 1) * block < k <= shape.splitters * block
    assert shape.settled * block + shape.window == k
    assert shape.settled * block + slack <= k or shape.settled == 0
    assert (shape.settled + 1) * block + slack > k
    if k % block == 0 and size <= block and size <= shape.splitters:
        assert (shape.settled, shape.window) == (shape.splitters - size + 1, (size - 1) * block)


@given(st.integers(1, 4096), st.integers(1, 12))
def test_no_other_power_of_two_moves_less(k: int, size: int) -> None:
    def moved(block: int) -> int:
        shape = splitter_shape(k, size, block)
        return shape.splitters + shape.window

    best = best_block(k, size)
    assert best <= k
    assert all(moved(best) <= moved(1 << bit) for bit in range(k.bit_length()))


@given(st.integers(0, 5000), st.integers(1, 2000), st.integers(1, 8))
def test_dealt_rows_are_padded_chunk_by_chunk(rows: int, chunk: int, size: int) -> None:
    k = 64
    owner, gather = (scheme(name, size, k) for name in ("owner", "gather"))
    chunks = [min(chunk, rows - first) for first in range(0, rows, chunk)]
    dealt = sum(-(-count // size) for count in chunks)
    assert owner.received_bytes(rows, chunk) == (size - 1) * dealt * 12 * k
    assert gather.received_bytes(rows, chunk) == (size - 1) * rows * 8 * k
    assert owner.scratch_bytes(rows) == 20 * k * size * -(-rows // size)


def test_one_rank_moves_nothing() -> None:
    for each in schemes(2048, 1, splitter_shape(2048, 1)):
        assert each.received_bytes(100) == 0
        assert each.exchange_us(100, NVLINK) == 0.0


def test_every_strategy_has_a_cost() -> None:
    known = schemes(2048, 4, splitter_shape(2048, 4))
    assert set(STRATEGIES) == {each.strategy for each in known} - {""}
    narrow = schemes(2048, 4, splitter_shape(2048, 4), "local")
    assert {step for each in (*known, *narrow) for step in each.steps + each.few} == {*STEPS}


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("gather", "global"),
        ("gather", "local"),
        ("owner", "global"),
        ("owner", "local"),
        ("splitter", "local"),
        ("splitter/owner", "local"),
    ],
)
def test_the_library_reserves_and_moves_what_is_said_here(
    name: str, output: str, size: int
) -> None:
    """The ledger of a merge in chunks, the last one short, and the specs it asked for."""
    k, rows, chunk = 37, 11, 4
    expected = scheme(name, size, k, output)
    options = MergeOptions(transport="owner") if name == "splitter/owner" else None

    def merge(comm: Communicator) -> tuple[int, int]:
        op = TopKMerge(
            comm,
            k,
            rows,
            strategy=expected.strategy,
            output=output,
            chunk_rows=chunk,
            options=options,
        )
        op.prepare()
        comm.ledger.reset()
        scores = torch.arange(rows * k, dtype=torch.float32).view(rows, k)
        op(scores, torch.arange(k, dtype=torch.int32).repeat(rows, 1))
        return op.nbytes, comm.ledger.bytes_received

    for nbytes, received in run_ranks(merge, size):
        assert nbytes == expected.scratch_bytes(chunk)
        assert received == expected.received_bytes(rows, chunk)
