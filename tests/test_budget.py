"""The budget of a whole model: what is really reserved, what rivals cost, what is gained."""

import pytest
import torch

from dcp_comm.budget import SEED_ROWS, Budget, Design, attention_bytes, budget
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.indexer import SparseIndexer
from dcp_comm.models import GIB, MODELS
from dcp_comm.specs import ALIGNMENT
from dcp_comm.testing import run_ranks
from dcp_comm.topk.options import MergeOptions
from dcp_comm.workspace import Workspace

MIB = 1 << 20


def design(found: Budget, name: str, merge: str = "") -> Design:
    return next(each for each in found.designs if (each.name, each.merge) == (name, merge))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("model", MODELS)
def test_the_indexer_reserves_what_the_budget_says(model: str, size: int) -> None:
    """Owner by owner, up to the alignment of the merge's own buffers."""
    found = budget(model, size, next_n=4)

    def fn(comm: Communicator, strategy: str, options: MergeOptions) -> dict[str, int]:
        workspace = Workspace()
        indexer = SparseIndexer(comm, found.limits, strategy=strategy, options=options)
        indexer.reserve(workspace)
        return dict(workspace.report().owners)

    for merge, strategy, options in (
        ("gather", "gather", MergeOptions()),
        ("owner", "owner", MergeOptions()),
        ("splitter", "splitter", MergeOptions()),
        ("splitter/owner", "splitter", MergeOptions(transport="owner")),
    ):
        said = design(found, "sharded", merge).reserved
        for owners in run_ranks(fn, size, strategy, options):
            assert set(owners) == {"indexer prefill", "indexer decode"}
            for owner, nbytes in owners.items():
                assert abs(nbytes - said[owner]) < 16 * ALIGNMENT


@pytest.mark.parametrize("size", [1, 2, 4])
def test_attention_reserves_what_the_budget_says(size: int) -> None:
    """A merge of bfloat16 latents, all heads of the group, 1024 rows at a time."""
    attention = pytest.importorskip("dcp_comm.attention")

    def fn(comm: Communicator) -> list[int]:
        found = []
        for model in MODELS.values():
            shape = 8192, model.heads, model.value_dim, torch.bfloat16
            found.append(attention.LseMerge(comm, *shape, chunk_rows=1024).nbytes)
        return found

    said = [attention_bytes(model, 8192, size) for model in MODELS.values()]
    assert run_ranks(fn, size) == [said] * size


def test_the_workspace_is_its_largest_owner_s() -> None:
    found = design(budget("glm-5.3", communicator=7), "sharded", "gather")
    assert list(found.reserved) == ["indexer prefill", "indexer decode", "attention"]
    assert found.workspace == found.reserved["indexer prefill"]
    assert found.nbytes == found.workspace + 7


def test_the_published_merge_rides_on_the_engine_s_communicator() -> None:
    found = budget("glm-5.3")
    assert design(found, "sharded", "vllm").communicator == 0
    assert {each.communicator for each in found.designs if each.merge not in ("vllm", "")} == {
        868 * MIB
    }
    seed, ours = (design(found, "sharded", merge) for merge in ("vllm", "gather"))
    assert seed.workspace - ours.workspace == 80 * MIB


def test_rivals_pay_in_tokens_or_in_keys() -> None:
    found = budget("glm-5.3", 4, memory=143.77, weights=121.8)
    sharded, replicated = design(found, "sharded", "gather"), design(found, "replicated")
    split = design(found, "split rows", "gather")
    assert sharded.token_bytes == split.token_bytes == 54_728 / 4
    assert replicated.token_bytes == 79 * 656 / 4 + 22 * 132
    keys = 786_432 * 128 * 4
    own, others = (each.reserved["indexer prefill"] for each in (sharded, replicated))
    assert others - own == keys * 3 // 4 - 64 * MIB
    assert split.reserved["indexer prefill"] == others + 786_432 * 132
    assert split.reserved["indexer decode"] == sharded.reserved["indexer decode"]
    free = int((143.77 * 0.945 - 121.8) * GIB)
    for each in found.designs:
        assert each.tokens == int((free - each.nbytes) / each.token_bytes)
    assert budget("glm-5.3", 1).designs[-1].name == "sharded"


def test_tokens_gained_at_both_chunk_sizes() -> None:
    """Against 144 MiB at p = 4; by hand, 13,682 bytes a token and rank."""
    gains = {(each.merge, each.chunk_rows): each for each in budget("glm-5.3").gains}
    assert {each.published_bytes for each in gains.values()} == {9 * 8 * SEED_ROWS * 2048}
    assert set(gains) == {
        (merge, rows)
        for merge in ("gather", "owner", "splitter", "splitter/owner")
        for rows in (1024, 2048)
    }
    for merge, rows, scratch in (
        ("gather", 1024, 64 * MIB),
        ("gather", 2048, 128 * MIB),
        ("splitter", 2048, 44_056_576),
    ):
        found = gains[merge, rows]
        assert found.scratch_bytes == scratch
        assert found.adopted == (144 * MIB - scratch) * 4 // 54_728
        assert found.own == -((scratch + 868 * MIB - 144 * MIB) * 4 // 54_728)


def test_no_memory_no_tokens_and_too_little_none() -> None:
    assert {each.tokens for each in budget("glm-5").designs} == {None}
    assert {each.tokens for each in budget("glm-5", memory=1.0, weights=5.0).designs} == {0}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("model: got 'glm'", {"model": "glm"}),
        ("model: got None", {"model": None}),
        ("size: got 0", {"size": 0}),
        ("communicator: got -1", {"communicator": -1}),
        ("query_rows: got 0", {"query_rows": 0}),
        ("max_model_len", {"max_model_len": 1 << 40}),
        ("logits_bytes", {"size": 1, "max_model_len": 1 << 30}),
        ("memory: got nan", {"memory": float("nan")}),
        ("utilization: got 2", {"memory": 1.0, "utilization": 2}),
    ],
)
def test_what_makes_no_budget_is_refused(words: str, options: dict[str, object]) -> None:
    with pytest.raises(CommArgumentError, match=words):
        budget(**{"model": "glm-5", **options})  # type: ignore[arg-type]
