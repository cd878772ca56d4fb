"""Keys in pages: the field's bytes, written through slots, read back, and scored bit for bit."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.indexer import IndexerBatch, IndexerLimits, SparseIndexer, pages, write_keys
from dcp_comm.indexer.pages import read_keys
from dcp_comm.sharding import Shard
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import Workspace
from tests import oracle
from tests.indexer import storages
from tests.indexer.cases import Case, a_step, check

LIMITS = IndexerLimits(5, 2, 8, 16, 3, 96, next_n=3, interleave=2, page_size=4)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "fp8": torch.uint8}


def a_cache(storage: str, count: int, page_size: int, head_dim: int, fill: int = 0xA5) -> Tensor:
    """Pages full of one byte."""
    dtype, width = DTYPES[storage], head_dim + 4 * (storage == "fp8")
    raw = torch.full((count, page_size, width * dtype.itemsize), fill, dtype=torch.uint8)
    return raw.view(dtype)


def some_keys(count: int, head_dim: int, seed: int = 0) -> Tensor:
    """Keys of very different sizes, one of them 0."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(count, head_dim, generator=generator)
    keys *= torch.logspace(-6, 6, count)[:, None]
    keys[count // 2] = 0
    return keys


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fp8_bytes_are_the_field_s(dtype: torch.dtype, power_of_two: bool) -> None:
    """All values of a page, then all scales, each byte as worked out in numpy; gaps untouched."""
    keys = (some_keys(9, 8) if dtype != torch.float16 else torch.randn(9, 8)).to(dtype)
    slots = torch.tensor([13, 0, -1, 3, 7, -1, 12, 4, 1])
    cache = a_cache("fp8", 4, 4, 8)
    want = cache.numpy().copy()
    for key, slot in zip(keys.float().numpy(), slots.tolist(), strict=True):
        if slot >= 0:
            coded = storages.quantized(key, power_of_two=power_of_two)
            storages.put_bytes(want, divmod(slot, 4), *coded)
    write_keys(cache, keys, slots, power_of_two_scales=power_of_two)
    np.testing.assert_array_equal(cache.numpy(), want)


def test_every_code_survives_and_rounds_to_even() -> None:
    """Each code times its scale comes back; halfway between two codes the even one is taken."""
    codes = storages.CODES[np.isfinite(storages.CODES)]
    steps = np.sort(codes)
    halves = (steps[1:] + steps[:-1]) / 2
    for values in (codes, halves.astype(np.float32)):
        keys = np.concatenate([values, np.zeros(-len(values) % 8), np.full(8, 448)])
        keys = keys.astype(np.float32).reshape(-1, 8)
        keys[:, 0] = 448  # the largest of each: scale 1
        cache = a_cache("fp8", 10, 4, 8)
        write_keys(cache, torch.from_numpy(keys), torch.arange(len(keys)))
        for slot, key in enumerate(keys):
            want = storages.CODES[storages.encoded(key)]
            np.testing.assert_array_equal(storages.key_at(cache.numpy(), divmod(slot, 4)), want)


@pytest.mark.parametrize("storage", storages.NAMES)
@pytest.mark.parametrize("block", [1, 24, 1 << 20])
def test_keys_are_read_back_as_stored(
    storage: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a table in any order, from any position on, whatever the blocks."""
    monkeypatch.setattr(pages, "BLOCK_ELEMENTS", block)
    table, keys = torch.tensor([3, 0, 4]), some_keys(11, 8)
    slots = torch.tensor([table[j // 4] * 4 + j % 4 for j in range(11)])
    cache = a_cache(storage, 5, 4, 8)
    write_keys(cache, keys, slots)
    found = torch.full((9, 8), torch.nan)
    read_keys(found, cache, table, first=2)
    want = {
        "float32": lambda: keys[2:],
        "bfloat16": lambda: keys[2:].bfloat16().float(),
        "fp8": lambda: torch.from_numpy(
            np.stack(
                [storages.key_at(cache.numpy(), divmod(slot, 4)) for slot in slots[2:].tolist()]
            )
        ),
    }[storage]()
    assert torch.equal(found, want)


@pytest.mark.parametrize("storage", storages.NAMES)
@pytest.mark.parametrize("slots", [[-1, -1, -1], [-5, 0, -1], [2, -1, -1], []])
def test_what_no_rank_s_slot_asks_for_stays(storage: str, slots: list[int]) -> None:
    """Also where nothing at all is this rank's: slot 0 keeps its bytes."""
    keys = some_keys(len(slots), 8) if slots else torch.zeros(0, 8)
    cache = a_cache(storage, 1, 4, 8, fill=0x3C)
    alone = cache.clone()
    write_keys(cache, keys, torch.tensor(slots, dtype=torch.int32))
    for slot, key in zip(slots, keys, strict=True):
        if slot >= 0:
            write_keys(alone, key[None], torch.tensor([slot]))
    assert torch.equal(cache.view(torch.uint8), alone.view(torch.uint8))


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_what_is_not_finite_reads_as_nan(special: float, power_of_two: bool) -> None:
    """So its token never wins; fp8 has no infinity."""
    keys = torch.ones(1, 8)
    keys[0, 3] = special
    cache, found = a_cache("fp8", 1, 4, 8), torch.zeros(1, 8)
    write_keys(cache, keys, torch.tensor([2]), power_of_two_scales=power_of_two)
    read_keys(found, cache, torch.tensor([0]), first=2)
    assert found[0, 3].isnan()


def test_new_slots_are_found_for_own_tokens_alone() -> None:
    """Positions 0..33 over four ranks in pairs: local places, one rank each; padding has none."""
    found = set()
    for rank, hand in enumerate(oracle.deal(34, 4, 2)):
        table = torch.randperm(7, generator=torch.Generator().manual_seed(rank))[:3]
        batch = IndexerBatch([34, 0, 1], [34, 2, 3], torch.stack([table, table + 7, table + 14]))
        slots = batch.own_slots(Shard(rank, 4, 2), 4).tolist()
        for j, token in enumerate(hand):
            assert slots[token] == table[j // 4] * 4 + j % 4
            found.add(token)
        assert [slots[token] for token in range(34) if token not in hand] == [-1] * (34 - len(hand))
        assert slots[34:38] == [-1] * 4
        assert slots[38] == (-1 if rank else (table[0] + 14) * 4)
    assert found == set(range(34))


@pytest.mark.parametrize("table", [[[5, -1]], [[5]], [[]]])
def test_tokens_without_a_page_have_no_slot(table: list[list[int]]) -> None:
    """A page below 0, or beyond the table."""
    batch = IndexerBatch([9], [9], torch.tensor(table, dtype=torch.int32).view(1, -1))
    want = [20, 21, 22, 23] if table[0] else [-1] * 4
    assert batch.own_slots(Shard(0, 1), 4).tolist() == want + [-1] * 5


@pytest.mark.parametrize("storage", storages.NAMES)
@pytest.mark.parametrize("output", ["local", "global", "slots"])
def test_every_form_serves_every_output(storage: str, output: str) -> None:
    """Prefill and decode, full and padded, on three ranks in an order of their own."""
    steps = (
        a_step("prefill", [90, -1, 7], [11, 2, 3], head_dim=8, seed=1),
        a_step("decode", [96, 3, 0], [3, 2, 1], head_dim=8, seed=2),
    )
    check(Case(LIMITS, 3, steps, output, chunk_rows=5, storage=storage, places=(1, 2, 0)))


@pytest.mark.parametrize("storage", ["bfloat16", "fp8"])
def test_a_form_scores_as_its_dequantised_keys_do(storage: str) -> None:
    """Bit for bit: random keys written in chunks through slots, against float32 pages of them."""
    limits = replace(LIMITS, k=16, max_model_len=300, query_rows=300, heads=4)
    length, generator = 300, torch.Generator().manual_seed(0)
    keys, q = (torch.randn(length, *shape, generator=generator) for shape in ((8,), (4, 8)))
    weights = torch.randn(length, 4, generator=generator)

    def fn(comm: Communicator) -> None:
        indexer, workspace, seen = SparseIndexer(comm, limits), Workspace(), []
        table = torch.randperm(38, generator=torch.Generator().manual_seed(comm.rank))[None].int()
        cache, plain = a_cache(storage, 40, 4, 8), torch.zeros(40, 4, 8)
        ends = (0, 100, 101, 300)
        for first, end in pairwise(ends):
            batch = IndexerBatch([end], [end - first], table)
            slots = indexer.slots(batch)
            write_keys(cache, keys[first:end], slots)
            for token, slot in zip(range(first, end), slots.tolist(), strict=True):
                if slot >= 0:
                    at, key = divmod(slot, 4), keys[token]
                    coded = key.bfloat16().float()
                    if storage == "fp8":
                        codes, scale = storages.quantized(key.numpy(), power_of_two=False)
                        coded = torch.from_numpy(storages.CODES[codes] * scale)
                    plain[at] = coded
            mine = q[first:end], weights[first:end]
            got = [
                indexer.prefill(*mine, each, batch, workspace=workspace) for each in (cache, plain)
            ]
            assert torch.equal(got[0].ids, got[1].ids)
            assert torch.equal(got[0].counts, got[1].counts)
            seen.append(int(got[0].counts.sum()))
        assert sum(seen) > 0

    run_ranks(fn, 2)


def at_byte(cache: Tensor, first: int) -> Tensor:
    """The same shape in other memory."""
    raw = torch.zeros(cache.numel() + first, dtype=torch.uint8)
    return raw[first:].view(cache.shape)


REFUSED: dict[str, tuple[str, Callable[[Tensor, Tensor, Tensor], object]]] = {
    "keys of one dimension": (r"keys: got shape \(6,\)", lambda c, k, s: (c, k[:, 0], s)),
    "keys of ints": ("keys: got torch.int32", lambda c, k, s: (c, k.int(), s)),
    "a key too few": (r"slots: got shape \(6,\), need shape \(5\)", lambda c, k, s: (c, k[1:], s)),
    "slots of floats": ("slots: got torch.float32", lambda c, k, s: (c, k, s.float())),
    "a slot beyond": (
        "slots: got 20, need at most 19.*-1 for other",
        lambda c, k, s: (c, k, s + 15),
    ),
    "another head_dim": ("cache: got shape", lambda c, k, s: (c, k[:, :4], s)),
    "a cache in float16": ("cache: got torch.float16", lambda c, k, s: (c.half(), k, s)),
    "a cache with gaps": ("cache: got strides", lambda c, k, s: (c[:, ::2], k, s)),
    "scales off their bytes": (
        "cache: got 32 bytes of values a page, from byte 2 on",
        lambda c, k, s: (at_byte(c, 2), k, s),
    ),
    "pages off the scales' bytes": (
        "cache: got 18 bytes of values a page",
        lambda c, k, s: (torch.zeros(5, 6, 7, dtype=torch.uint8), k[:, :3], s),
    ),
    "keys elsewhere": ("cache: got device cpu", lambda c, k, s: (c, k.to("meta"), s)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_write_refuses(name: str) -> None:
    """By name, and nothing is written."""
    words, change = REFUSED[name]
    cache, keys, slots = a_cache("fp8", 5, 4, 8), some_keys(6, 8), torch.arange(6)
    before = cache.clone()
    with pytest.raises(CommArgumentError, match=f"write_keys: .*{words}"):
        write_keys(*change(cache, keys, slots))  # type: ignore[misc]
    assert torch.equal(cache, before)
