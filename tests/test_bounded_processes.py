"""Forks, shared ports, second lives and sudden deaths of ranks that are processes over gloo."""

import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from dcp_comm import cli
from tests.bounded_processes import CHILD_CODE, LOST, ROUNDS, SHORT_SECONDS, TURNS
from tests.launches import launch
from tests.processes import Report

pytestmark = pytest.mark.xdist_group("processes")

SIZE, SIGKILLED = 3, -9
SURVIVORS = [rank for rank in range(SIZE) if rank != LOST]


@dataclass(frozen=True)
class Told:
    """What one launch reported by rank and topic, how its ranks ended, and their traces."""

    topics: list[dict[str, Report]]
    codes: list[int]
    traces: list[Path]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One launch of three ranks."""
    folder = tmp_path_factory.mktemp("traces")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DCP_COMM_TRACE_DIR", str(folder))
        with launch("tests.bounded_processes", SIZE) as ranks:
            topics = [{each["topic"]: each for each in rank.rest(100.0)} for rank in ranks]
            codes = [rank.wait() for rank in ranks]
            if "killed" not in topics[0]:
                pytest.fail("\n".join(rank.errors() for rank in ranks))
    return Told(topics, codes, sorted(folder.iterdir()))


def test_a_forked_child_ends_as_it_wishes(told: Told) -> None:
    for each in told.topics:
        assert each["forked"]["code"] == CHILD_CODE
        assert each["forked"]["slots"] == [0, 1, 2]


def test_an_application_may_come_up_on_the_same_port_later(told: Told) -> None:
    for each in told.topics:
        found = each["shared_port"]
        assert found["total"] == SIZE
        assert found["slots"] == found["afterwards"] == [0, 1, 2]


def test_a_communicator_can_be_made_again_after_each_death(told: Told) -> None:
    for rank, each in enumerate(told.topics):
        found = each["made_again"]["found"]
        assert [one["name"] for one in found] == [f"world.{n + 2}" for n in range(ROUNDS)]
        for one in found:
            assert one["first"] == [0, 1, 2]
            if rank != LOST:
                assert one["error"] == "CommTimeout"
                assert f"rank {LOST} did not come" in one["text"]
                assert SHORT_SECONDS <= one["seconds"] < SHORT_SECONDS + 2
        counts = each["made_again"]["counts"][1:]
        # The store that rank 0 serves drops the connections of who has left in its own time.
        spare = 2 if rank == 0 else 0
        for files, threads in counts:
            assert abs(files - counts[0][0]) <= spare
            assert threads == counts[0][1]


def test_a_killed_rank_is_named_at_once(told: Told) -> None:
    died = told.topics[LOST]["dies"]["at"]
    assert told.codes == [SIGKILLED if rank == LOST else 0 for rank in range(SIZE)]
    for rank in SURVIVORS:
        found = told.topics[rank]["killed"]
        assert found["error"] == "CommPeerLost"
        assert f"the process of rank {LOST} has ended" in found["text"]
        assert "all_gather_into int64 x 3" in found["text"]
        assert found["turns"] == TURNS
        assert found["at"] - died < 2


def test_traces_are_private_and_say_who_stopped_where(
    told: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    doomed = [path for path in told.traces if path.name.startswith("doomed.")]
    assert [path.name.split(".")[1] for path in doomed] == [f"rank{rank}" for rank in SURVIVORS]
    for path in told.traces:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.setattr(cli, "COMMANDS", ("trace",))
    assert cli.main(["trace", "--last", "2", *map(str, doomed)]) == 1
    text = capsys.readouterr().out
    assert "doomed: 2 of 3 ranks told" in text
    assert f"rank {LOST}: no trace: it was killed" in text
    for rank in SURVIVORS:
        line = next(each for each in text.splitlines() if each.startswith(f"rank {rank}: "))
        assert "stopped in call" in line
        assert "failed" in line
