"""Options that went wrong in public: compressed lengths, zeros taken for unset, registration."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.indexer import IndexerLimits, SparseIndexer
from dcp_comm.testing import run_ranks
from dcp_comm.topk.options import MergeOptions
from tests.schemes import candidates
from tests.security.test_sources import SOURCES

LIMITS = IndexerLimits(64, 4, 16, 32, 4, 8192)


def test_a_compressed_cache_is_reserved_by_its_entries() -> None:  # B47
    """Four tokens an entry: the limits count entries, and keys take a quarter."""

    def keys(comm: Communicator, limits: IndexerLimits) -> int:
        specs = SparseIndexer(comm, limits).prefill_specs()
        return next(spec.nbytes for spec in specs if spec.name == "keys")

    whole, pooled = LIMITS, replace(LIMITS, max_model_len=LIMITS.max_model_len // 4)
    assert run_ranks(keys, 2, whole) == [4 * each for each in run_ranks(keys, 2, pooled)]


@pytest.mark.parametrize("of", [dc.TopKMerge, dc.IndexerLimits, dc.local_topk])
def test_the_number_of_winners_has_no_default(of: Any) -> None:  # B52
    """Where there is none, none can stand in for one that was given."""
    assert inspect.signature(of).parameters["k"].default is inspect.Parameter.empty


@pytest.mark.parametrize(
    "given", [{"k": 0}, {"max_rows": 0}, {"chunk_rows": 0}, {"interleave": 0}, {"link": ""}]
)
def test_zero_is_not_unset(given: dict[str, Any]) -> None:  # B52
    """Refused, and not replaced by a default."""

    def fn(comm: Communicator) -> None:
        with pytest.raises(CommArgumentError, match=next(iter(given))):
            dc.TopKMerge(comm, **{"k": 4, "max_rows": 8, **given})

    run_ranks(fn, 1)


@pytest.mark.parametrize("name", ["page_size", "block"])
def test_zero_is_no_setting_of_a_strategy(name: str) -> None:  # B52
    if name not in inspect.signature(MergeOptions).parameters:
        pytest.skip("no such option")

    settings: dict[str, Any] = {name: 0}

    def fn(comm: Communicator) -> None:
        with pytest.raises(CommArgumentError, match=name):
            dc.TopKMerge(comm, 4, 8, output="slots", options=MergeOptions(**settings))

    run_ranks(fn, 2)


def test_places_and_lengths_of_zero_are_taken_as_they_are() -> None:  # B52
    """Place 0 of the deal on rank 1; a longest row of 0, which exchanges nothing."""

    def fn(comm: Communicator) -> tuple[list[int], int]:
        merge = dc.TopKMerge(comm, 3, 8, output="local", shard_rank=1 - comm.rank)
        merge.prepare()
        comm.ledger.reset()
        job = merge.begin(2, longest=0)
        job.pack(*candidates(2, 3)[:2], torch.zeros(2, dtype=torch.int32))
        return job.finish().counts.tolist(), comm.ledger.calls

    assert run_ranks(fn, 2) == [([0, 0], 0)] * 2


def test_nobody_asks_nccl_for_symmetric_memory() -> None:  # B67
    """Below NCCL 2.30.7 small batches through it went wrong in graphs."""
    asking = ("ncclCommWindowRegister", "ncclMemAlloc", "ncclCommRegister", "symmetric_memory")
    for source in SOURCES:
        text = source.read_text()
        assert not any(word in text for word in asking), source
