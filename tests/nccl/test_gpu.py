"""What holds on a GPU beyond the contract: graphs, streams, neighbours, adoption, lost peers."""

import sys
from importlib.util import find_spec
from typing import Any

import pytest

from tests.nccl.on_gpu import INIT_TIMEOUT, TIMEOUT, named, ranks, told, with_headers
from tests.nccl.parts import PARTS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

BACKENDS = [
    "pynccl",
    pytest.param("cupy", marks=pytest.mark.skipif(find_spec("cupy") is None, reason="no CuPy")),
    "torch",
]
OWN = BACKENDS[:2]
SIGKILLED = -9


@pytest.fixture(scope="module", params=BACKENDS)
def on_each_rank(request: pytest.FixtureRequest) -> dict[str, list[Any]]:
    """The facts of every part, rank by rank, from one run of 4 ranks."""
    reports = told("parts", request.param, 4)
    for each in reports[0]:
        sys.stdout.write(f"{request.param}: {each['name']}: {each['facts']}\n")
    return {name: [named(each, name) for each in reports] for name in PARTS}


def test_merges_are_exact(on_each_rank: dict[str, list[Any]]) -> None:
    for facts in on_each_rank["merges_are_exact"]:
        assert facts == dict.fromkeys(facts, 0)


def test_every_collective_replays_with_changing_input(on_each_rank: dict[str, list[Any]]) -> None:
    assert on_each_rank["graphs_replay"] == [{"eager": 0, "replayed": 0}] * 4


def test_a_gather_replays_a_thousand_times(on_each_rank: dict[str, list[Any]]) -> None:
    assert on_each_rank["a_gather_replays_a_thousand_times"] == [{"wrong": 0}] * 4


def test_two_sizes_share_a_pool(on_each_rank: dict[str, list[Any]]) -> None:
    assert on_each_rank["two_sizes_share_a_pool"] == [{"wrong": 0}] * 4


def test_a_whole_merge_replays(on_each_rank: dict[str, list[Any]]) -> None:
    assert on_each_rank["a_merge_replays"] == [{"eager": 0, "replayed": 0}] * 4


def test_a_warm_gather_allocates_nothing(on_each_rank: dict[str, list[Any]]) -> None:
    """The host waits neither there nor in a whole merge: the part would have failed."""
    for facts in on_each_rank["a_warm_merge_allocates_and_waits_for_nothing"]:
        assert facts["gather"] == 0


def test_streams_without_an_order_are_ordered(on_each_rank: dict[str, list[Any]]) -> None:
    for facts in on_each_rank["streams_without_an_order_are_ordered"]:
        assert facts["values"] == facts["wanted"]


def test_neighbours_take_turns(on_each_rank: dict[str, list[Any]]) -> None:
    for facts in on_each_rank["neighbours_take_turns"]:
        assert facts == dict.fromkeys(facts, True)


def test_parts_come_and_go(on_each_rank: dict[str, list[Any]]) -> None:
    for facts in on_each_rank["parts_share_and_come_and_go"]:
        assert facts["wrong"] == 0


def test_what_preparing_costs_is_told(on_each_rank: dict[str, list[Any]]) -> None:
    """Device-wide: what the other ranks of this GPU take meanwhile is counted too."""
    for facts in on_each_rank["preparing_costs"]:
        assert facts["first"]["prepare"] > 0
        assert "MiB of cuda:0" in facts["report"]


def test_adopted_communicators_work_and_live_on() -> None:
    for rank, reports in enumerate(told("adopts", "-", 4)):
        for each in reports[:-1]:
            counts = {k: v for k, v in each["facts"].items() if k != "name"}
            assert counts == dict.fromkeys(counts, 0), f"rank {rank}: {each}"
        assert named(reports, "torch's group lives") == {"total": [4.0] * 3}


@pytest.mark.parametrize("backend", OWN)
def test_close_returns_while_a_captured_graph_lives(backend: str) -> None:
    reports = told("live_graph", backend, 2)
    for each in reports:
        closing = next(report for report in each if report["name"] == "close")
        assert closing["facts"] is None
        assert closing["seconds"] < 2.5
    assert named(reports[0], "ended") == {"at close": False, "later": True}


@pytest.mark.parametrize("scenario", ["killed_eager", "killed_replay"])
@pytest.mark.parametrize("backend", OWN)
def test_a_killed_peer_is_noticed(scenario: str, backend: str) -> None:
    """Within the timeout, typed; survivors close and end."""
    with ranks(scenario, backend, 3) as processes:
        died = processes[1].next(60)["at"]
        for survivor in (processes[0], processes[2]):
            reports = survivor.rest(60)
            noticed = named(reports, "told")
            assert noticed["error"] in ("CommPeerLost", "CommTimeout"), noticed
            at = next(report["at"] for report in reports if report["name"] == "told")
            assert at - died < TIMEOUT + 2, noticed
            assert survivor.wait(15) == 0, survivor.errors()
        assert processes[1].wait(5) == SIGKILLED


@pytest.mark.parametrize("backend", OWN)
def test_a_peer_that_dies_during_init_is_noticed_by_the_deadline(backend: str) -> None:
    with ranks("killed_init", backend, 3) as processes:
        assert processes[1].next(60)["name"] == "dies"
        for survivor in (processes[0], processes[2]):
            reports = survivor.rest(60)
            assert named(reports, "init")["error"] in ("CommTimeout", "CommPeerLost")
            assert reports[0]["seconds"] < INIT_TIMEOUT + 2
            assert survivor.wait(15) == 0, survivor.errors()


@pytest.mark.parametrize("backend", OWN)
def test_a_communicator_is_made_again_after_one_died(backend: str) -> None:
    for rank, reports in enumerate(told("made_again", backend, 2)):
        names = [["world", {"wrong": 0}], ["world.2", {"wrong": 0}]]
        assert named(reports, "names") == names
        deaths = [each["facts"] for each in reports if each["name"] == "dies"]
        assert len(deaths) == (0 if rank else 2)
        for death in deaths:
            assert death["error"] == "CommTimeout"
            assert "all_reduce: call " in death["text"]
            assert "rank 1 did not come" in death["text"]


@pytest.mark.parametrize("backend", OWN)
def test_what_was_queued_before_a_call_does_not_count_against_it(backend: str) -> None:
    for reports in told("long_queue", backend, 2):
        assert named(reports, "check") is None
        facts = named(reports, "queue")
        assert facts["total"] == [2.0] * 4
        assert facts["queued"] > facts["timeout"]


@pytest.mark.parametrize("backend", OWN)
def test_a_watch_does_not_disturb_a_capture(backend: str) -> None:
    for reports in told("watched_capture", backend, 2):
        assert named(reports, "check") is None
        assert named(reports, "wrong") == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_headers_are_compared_on_the_gpu(backend: str) -> None:
    """Eager and in replays; what they cost is printed, and says little where GPUs are shared."""
    for reports in told("headers", backend, 2, with_headers):
        assert named(reports, "check") is None
        assert named(reports, "wrong") == 0
        sys.stdout.write(f"{backend}: microseconds of a merge: {named(reports, 'cost')}\n")
        differs = named(reports, "differs")
        assert differs["error"] == "CommMismatch"
        assert "the ranks were not making the same merge" in differs["text"]


@pytest.mark.parametrize("backend", OWN)
def test_a_peer_that_never_calls_is_a_timeout(backend: str) -> None:
    """The waiting stream is set free, and the communicator says why ever after."""
    reports = told("absent", backend, 2)[0]
    free = next(report for report in reports if report["name"] == "set free")
    assert TIMEOUT - 1 < free["seconds"] < TIMEOUT + 2
    for name in ("check", "next"):
        found = named(reports, name)
        assert found["error"] == "CommTimeout"
        assert "all_reduce: call " in found["text"]
        assert "rank 1 did not come" in found["text"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ending_without_a_close_hangs_nobody(backend: str) -> None:
    for reports in told("no_close", backend, 2):
        assert named(reports, "calls") == {"wrong": 0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_ranks_of_one_host_on_one_gpu_are_refused(backend: str) -> None:
    for reports in told("two_on_one_gpu", backend, 2):
        facts = named(reports, "init")
        assert facts["error"] == "CommUsageError"
        assert "NCCL_HOSTID" in facts["text"]
