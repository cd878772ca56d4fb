"""Real processes over gloo: mismatches, signals, threads, forks, closes, and a clean end."""

import json
import os
import subprocess
import sys
import time

import pytest

from tests.processes import ROOT, Report, ranks, with_path
from tests.scenarios import LATE_SECONDS, MISMATCHES

pytestmark = pytest.mark.xdist_group("processes")

Life = dict[str, list[Report]]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("", id="plain"),
        pytest.param("1", id="without assertions", marks=pytest.mark.slow),
    ],
)
def life(request: pytest.FixtureRequest) -> Life:
    """Two ranks' reports by topic, from one launch; and how the processes ended."""
    with ranks("life", 2, PYTHONOPTIMIZE=request.param, GLOO_SOCKET_IFNAME="lo") as started:
        reports = [process.rest(90.0) for process in started]
        last = [each[-1]["at"] for each in reports]
        codes = [process.wait() for process in started]
        ended = time.monotonic()
        end = [
            {"code": code, "seconds": ended - at, "errors": process.errors()}
            for code, at, process in zip(codes, last, started, strict=True)
        ]
    topics = [{report["topic"]: report for report in each} for each in reports]
    assert topics[0].keys() == topics[1].keys(), end
    return {"end": end, **{topic: [each[topic] for each in topics] for topic in topics[0]}}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_calls_that_differ_raise_on_both_ranks_and_write_nothing(life: Life, kind: str) -> None:
    for report in life["mismatches"]:
        found = report["found"][kind]
        assert (found["error"], found["again"]) == ("CommMismatch", "CommMismatch")
        assert found["untouched"]
        assert "rank 0: call" in found["text"]
        assert "rank 1: call" in found["text"]


def test_an_error_of_ones_own_stays_and_the_peer_is_told(life: Life) -> None:
    waiter, raiser = life["raising"]
    assert (raiser["error"], raiser["text"]) == ("MemoryError", "mine")
    assert waiter["error"] == "CommPeerLost"
    assert waiter["seconds"] < 2


def test_a_signal_handler_runs_while_a_rank_waits(life: Life) -> None:
    waiter, late = life["signals"]
    assert waiter["slots"] == late["slots"] == [0, 1]
    assert waiter["took"] >= LATE_SECONDS * 0.9
    assert len(waiter["handled"]) == 1
    assert waiter["handled"][0] < 0.1 + 0.5


def test_ctrl_c_ends_a_wait_at_once_and_for_good(life: Life) -> None:
    interrupted, peer = life["interrupt"]
    assert interrupted["error"] == "KeyboardInterrupt"
    assert interrupted["seconds"] < 0.2 + 0.5
    assert interrupted["again"]["error"] == "CommClosed"
    assert "ended by KeyboardInterrupt" in interrupted["again"]["text"]
    assert interrupted["close"]["error"] == "NoneType"
    assert interrupted["close"]["seconds"] < 0.5
    assert peer["error"] == "CommPeerLost"


def test_a_second_thread_is_refused_and_data_never_cross(life: Life) -> None:
    waiter, late = life["two_threads"]
    assert waiter["slots"] == late["slots"] == waiter["afterwards"] == late["afterwards"] == [0, 1]
    assert [each["error"] for each in waiter["refused"]] == ["CommUsageError"]
    assert "another thread is inside" in waiter["refused"][0]["text"]
    assert life["threads_in_turn"][0]["slots"] == [[0, 1]]


def test_a_forked_child_is_refused_and_the_parent_goes_on(life: Life) -> None:
    for report in life["forked"]:
        assert (report["code"], report["slots"]) == (10, [0, 1])
        assert report["seconds"] < 5


def test_a_close_from_another_thread_ends_a_wait(life: Life) -> None:
    closer, peer = life["closed_by_a_thread"]
    assert (closer["error"], peer["error"]) == ("CommClosed", "CommPeerLost")
    assert closer["seconds"] < 0.2 + 0.4
    assert all(each["error"] == "NoneType" for each in closer["closes"] + peer["closes"])
    assert max(each["seconds"] for each in closer["closes"]) < 0.4
    assert closer["again"]["error"] == "CommClosed"


def test_two_communicators_of_one_launch_live_and_end_apart(life: Life) -> None:
    for report in life["second_launch"]:
        assert report["both"] == [[0, 1]] * 3
        assert report["names"] == ["world", "world.2"]
        assert report["closed"]["error"] == "CommClosed"
        assert report["alone"] == report["third"] == [0, 1]


def test_a_late_rank_is_a_timeout_here_and_a_lost_peer_there(life: Life) -> None:
    waiter, late = (report["late"] for report in life["second_launch"])
    assert waiter["error"] == "CommTimeout"
    assert 1.5 <= waiter["seconds"] < 2.5
    assert late["error"] == "CommPeerLost"
    assert [report["again"]["error"] for report in life["second_launch"]] == [
        "CommTimeout",
        "CommPeerLost",
    ]


def test_nothing_is_unpickled_and_nobody_listens_on_every_interface(life: Life) -> None:
    for report in life["security"]:
        assert report["unpickled"] == []
        assert len(report["listeners"]) > 0
        for listener in report["listeners"]:
            address, _ = listener.rsplit(":", 1)
            assert set(address) != {"0"}
            assert address in ("0100007F", "00000000000000000000000001000000")


def test_a_process_that_never_closes_ends_soon_and_well(life: Life) -> None:
    for end in life["end"]:
        assert end["code"] == 0, end
        assert end["seconds"] < 4
        assert "Traceback" not in end["errors"]
        assert "terminate" not in end["errors"]


def test_under_torchrun_with_and_without_a_process_group() -> None:
    options = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    module = ["-m", "torch.distributed.run", *options, "-m", "tests.processes", "torchrun"]
    done = subprocess.run(
        [sys.executable, *module],
        cwd=ROOT,
        env={**os.environ, **with_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = sorted(map(json.loads, done.stdout.splitlines()), key=lambda each: each["rank"])
    for rank, report in enumerate(found):
        assert report["where"] == f"rank {rank} of 2, backend torch"
        for name in ("world", "group", "afterwards"):
            assert report[name] == [0, 1]
        # Torch sorts the ranks that a group is made of; the slots are the group's, not the list's.
        assert report["backwards"] == [rank, [0, 1]]
        assert report["total"] == 3
    assert found[0]["solo"] == [0]
    assert found[1]["outsider"]["error"] == "CommUsageError"
    assert "a process group that this rank belongs to" in found[1]["outsider"]["text"]
