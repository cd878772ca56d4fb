"""Plans: the published figures, what fits in memory, and what is refused."""

import json
from typing import Any

import pytest

from dcp_comm import planning
from dcp_comm.errors import CommArgumentError
from dcp_comm.models import GIB, MODELS
from dcp_comm.planning import Plan, Route, curve, plan


def route(found: Plan, name: str) -> Route:
    return {each.name: each for each in found.routes}[name]


def test_the_defaults_reproduce_the_published_scratch() -> None:
    found = plan(rows=8192, k=2048, size=4)
    vllm, gather = route(found, "vllm"), route(found, "gather")
    assert vllm.unchunked_bytes == 1_207_959_552
    assert (vllm.chunk_rows, vllm.scratch_bytes) == (1024, 150_994_944)
    assert (gather.chunk_rows, gather.scratch_bytes) == (1024, 67_108_864)
    assert gather.unchunked_bytes == 512 << 20


def test_a_chunk_size_is_for_every_route_and_no_larger_than_the_rows() -> None:
    assert {each.chunk_rows for each in plan(chunk_rows=512).routes} == {512}
    assert {each.chunk_rows for each in plan(rows=32, chunk_rows=512).routes} == {32}
    few = plan(rows=32)
    assert all(each.scratch_bytes == each.unchunked_bytes for each in few.routes)


def test_rounds_and_times_are_over_all_chunks() -> None:
    gather, once = route(plan(), "gather"), route(plan(chunk_rows=8192), "gather")
    assert (gather.rounds, once.rounds) == (8, 1)
    assert gather.received_bytes == once.received_bytes == 8192 * 49152
    assert once.exchange_us["nvlink"] == pytest.approx(1275, abs=1)
    assert gather.exchange_us["nvlink"] - once.exchange_us["nvlink"] == pytest.approx(7 * 17)
    assert set(gather.exchange_us) == {"nvlink", "pcie", "network"}


def test_the_block_of_the_splitter_can_be_chosen() -> None:
    assert plan().splitter.block == 32
    assert plan(block=16).splitter.window == 48
    assert route(plan(block=16), "splitter").received_bytes == 8192 * 3 * 8 * (128 + 48)


def test_only_what_the_merge_offers_is_called_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "STRATEGIES", {"gather": None, "splitter": None})
    found = {each.name: each.available for each in plan().routes}
    assert found == {
        "vllm": False,
        "gather": True,
        "owner": False,
        "splitter": True,
        "splitter/owner": True,
    }


@pytest.mark.parametrize(
    ("tokens", "gib"), [(1_039_616, 13.25), (1_045_248, 13.32), (1_203_712, 15.34)]
)
def test_glm_reproduces_the_published_caches(tokens: int, gib: float) -> None:
    token_bytes = plan(model="glm-5.3", size=4).token_bytes
    assert token_bytes is not None
    assert round(tokens * token_bytes / GIB, 2) == gib
    assert round(tokens * 13_684 / GIB, 2) == gib


def test_tokens_that_fit_are_those_of_the_cache_that_is_left() -> None:
    memory: dict[str, Any] = {"memory": 14.25 / 0.5, "utilization": 0.5, "weights": 1.0}
    found = plan(model="glm-5.3", **memory)
    without, *others = found.holdings
    assert (without.route, without.reserved) == ("", {})
    assert without.cache_bytes == int(13.25 * GIB)
    assert without.tokens == pytest.approx(1_039_616, rel=4e-4)
    for each, holding in zip(found.routes, others, strict=True):
        assert holding.route == each.name
        assert holding.reserved == {"merge": each.scratch_bytes}
        assert holding.cache_bytes == without.cache_bytes - each.scratch_bytes
        assert holding.tokens == holding.cache_bytes // 13_682
    assert plan(bytes_per_token=13_682, **memory).holdings == found.holdings


def test_other_owners_are_reserved_beside_the_merge() -> None:
    found = plan(bytes_per_token=1000, memory=10.0, reserved={"logits": 512 << 20})
    without, vllm = found.holdings[:2]
    assert without.reserved == {"logits": 512 << 20}
    assert vllm.reserved == {"logits": 512 << 20, "merge": 144 << 20}
    assert vllm.cache_bytes == int(9.45 * GIB) - (656 << 20)


def test_what_does_not_fit_leaves_no_tokens() -> None:
    found = plan(bytes_per_token=1000, memory=10.0, weights=20.0)
    assert {(each.cache_bytes, each.tokens) for each in found.holdings} == {(0, 0)}


def test_models_add_up() -> None:
    assert MODELS["deepseek-v3.2"].token_bytes == 61 * (656 + 132) == 48_068
    assert MODELS["glm-5.3"].token_bytes == 79 * 656 + 22 * 132 == 54_728
    assert plan(model="deepseek-v3.2", size=8).token_bytes == 48_068 / 8
    assert plan().token_bytes is None
    assert plan().holdings == ()


def test_replicated_index_keys_cost_what_is_published() -> None:
    found = plan(model="glm-5.3", size=4)
    assert found.replicated_bytes == 132 * 3 / 4
    assert found.replicated_loss == pytest.approx(0.137, abs=0.0005)
    assert plan(size=2).replicated_bytes == 66
    assert plan().replicated_loss is None


def test_split_rows_break_even_where_both_receive_the_same() -> None:
    for rows in (1, 32, 8192):
        found = plan(rows=rows, size=4)
        for each in found.routes:
            context = each.split_below
            split = (context * 132 + rows * 2048 * 4) * 3 / 4
            if context:
                assert split == pytest.approx(each.received_bytes, abs=132)
            else:
                assert split + 132 > each.received_bytes
    assert route(plan(), "splitter").split_below == 0
    assert {each.split_below for each in plan(size=1).routes} == {0}


def test_the_curve_walks_what_an_engine_meets() -> None:
    points = curve()
    prefill = {(length, each.rows) for length, each in points if length is not None}
    assert {(16384, 8192), (131072, 1024), (1 << 20, 128)} <= prefill
    assert all(rows * length == 1 << 27 for length, rows in prefill)
    decode = [each.rows for length, each in points if length is None]
    assert decode == [rows for rows in planning.DECODE_ROWS for _ in range(3)]
    assert {each.size for _, each in points} == {2, 4, 8}
    assert curve(sizes=(4,))[0] == (16384, plan(8192, 2048, 4))


def test_a_plan_becomes_json() -> None:
    found = plan(model="glm-5.3", memory=143.0, weights=100.0)
    loaded = json.loads(json.dumps(found.to_dict()))
    assert loaded["rows"] == 8192
    assert loaded["routes"][0]["unchunked_bytes"] == 1_207_959_552
    assert loaded["holdings"][2]["reserved"] == {"merge": 67_108_864}
    assert loaded["model"]["index_layers"] == 22


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("rows", {"rows": 0}),
        ("k", {"k": True}),
        ("size", {"size": 2.0}),
        ("rows", {"rows": None}),
        ("chunk_rows", {"chunk_rows": 0}),
        ("block", {"block": -1}),
        ("model", {"model": "glm"}),
        ("model", {"model": "glm-5.3", "bytes_per_token": 5.0}),
        ("bytes_per_token", {"bytes_per_token": 0.0}),
        ("bytes_per_token", {"bytes_per_token": float("nan")}),
        ("memory", {"memory": 80.0}),
        ("memory", {"model": "glm-5.3", "memory": float("inf")}),
        ("memory", {"model": "glm-5.3", "memory": "80"}),
        ("utilization", {"model": "glm-5.3", "memory": 80.0, "utilization": 1.1}),
        ("weights", {"model": "glm-5.3", "memory": 80.0, "weights": -1.0}),
        ("reserved", {"model": "glm-5.3", "memory": 80.0, "reserved": {"logits": -1}}),
    ],
)
def test_what_makes_no_plan_is_refused(argument: str, options: dict[str, Any]) -> None:
    with pytest.raises(CommArgumentError, match=f"plan: {argument}.*: got .*, need "):
        plan(**options)
