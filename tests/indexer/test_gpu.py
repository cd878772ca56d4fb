"""The same steps on CUDA, on ranks that share the GPU."""

from dataclasses import replace

import pytest
import torch

from dcp_comm.indexer import write_keys
from dcp_comm.indexer.pages import read_keys
from tests.indexer import storages
from tests.indexer.cases import check
from tests.indexer.draws import random_case
from tests.indexer.test_cache import a_cache, some_keys
from tests.indexer.test_mutations import CASE
from tests.indexer.test_random import SEEDS, SIZES, small_blocks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("size", SIZES)
def test_any_shape_on_cuda(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps of every seed, blocks as they are and small."""
    for seed in SEEDS:
        check(replace(random_case(size, seed, steps=4), device="cuda"))
    small_blocks(monkeypatch)
    check(replace(random_case(size, 0, steps=4), device="cuda"))


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("storage", storages.NAMES)
def test_keys_are_written_on_cuda_as_on_the_cpu(storage: str, power_of_two: bool) -> None:
    """The same bytes, without a word from the GPU to the host; a slot beyond the cache is left."""
    keys = some_keys(9, 8)
    slots = torch.tensor([13, 0, -1, 3, 7, 99, 12, 4, 1])
    caches = []
    for device in ("cpu", "cuda"):
        cache = a_cache(storage, 4, 4, 8).to(device)
        here = slots.where(slots < 16, -1) if device == "cpu" else slots
        inputs = keys.to(device), here.to(device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            write_keys(cache, *inputs, power_of_two_scales=power_of_two)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        found = torch.zeros(16, 8, device=device)
        read_keys(found, cache, torch.arange(4, device=device))
        caches.append((cache.cpu().view(torch.uint8), found.cpu().view(torch.uint8)))
    assert all(map(torch.equal, *caches))


def test_a_mixed_step_on_cuda() -> None:
    """Packed, speculative, with padding, over several logits chunks and exchanges."""
    check(replace(CASE, device="cuda"))
