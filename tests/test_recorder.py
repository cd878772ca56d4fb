"""The flight recorder: the last calls, no data, written for their owner alone."""

import gc
import json
import stat
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch

from dcp_comm import recorder
from dcp_comm.communicator import Communicator
from dcp_comm.contract import Call, Place
from dcp_comm.errors import CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.recorder import FORMAT, Entry, Recorder
from dcp_comm.testing import run_ranks
from dcp_comm.topk.merge import TopKMerge
from tests.topk.cases import rows_of

PLACE = Place(1, 4, torch.device("cpu"), "fake")


def a_call(count: int = 3) -> Call:
    tensor = torch.zeros(count, 2, dtype=torch.bfloat16)
    return Call("all_reduce", tensor, tensor, reduce="sum")


def test_a_call_is_noted_from_its_beginning_to_its_end() -> None:
    flight = Recorder("world", PLACE)
    entry = flight.begin(7, "all_reduce", "merge", 2, [a_call()])
    assert flight.trace(None)["calls"][-1]["state"] == "started"
    assert flight.trace(None)["calls"][-1]["ended"] is None
    entry.end("done")
    noted = flight.trace(CommTimeout("late"))
    assert (noted["format"], noted["rank"], noted["size"]) == (FORMAT, 1, 4)
    assert noted["cause"] == ["CommTimeout", "late"]
    call = noted["calls"][-1]
    assert call["started"] <= call["ended"] <= noted["written"]
    assert {name: call[name] for name in ("number", "op", "purpose", "step", "state")} == {
        "number": 7,
        "op": "all_reduce",
        "purpose": "merge",
        "step": 2,
        "state": "done",
    }
    tensors = {"op": "all_reduce", "dtype": "bfloat16", "shape": [3, 2], "bytes": 12}
    assert call["tensors"] == [tensors]


def test_no_tensor_is_kept_alive() -> None:
    call = a_call()
    Recorder("world", PLACE).begin(1, "all_reduce", calls=[call])
    tensor = weakref.ref(call.output)
    del call
    gc.collect()
    assert tensor() is None


def test_only_the_last_calls_are_kept() -> None:
    flight = Recorder("ring", PLACE)
    for number in range(recorder.CALLS_KEPT + 5):
        flight.begin(number, "barrier")
    numbers = [call["number"] for call in flight.trace(None)["calls"]]
    assert numbers == list(range(5, recorder.CALLS_KEPT + 5))


def test_the_file_is_its_owners_alone_and_whole(tmp_path: Path) -> None:
    flight = Recorder("a/b c:1", PLACE, str(tmp_path))
    path = tmp_path
    for number in (1, 2):
        flight.begin(number, "barrier")
        path = flight.dump(None) or tmp_path
        assert path.name.startswith("a_b_c_1.rank1.")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert json.loads(path.read_text())["calls"][-1]["number"] == number
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_link_that_waits_where_the_file_will_be_is_not_followed(tmp_path: Path) -> None:
    folder, prey = tmp_path / "traces", tmp_path / "prey"
    folder.mkdir()
    prey.write_text("untouched")
    flight = Recorder("world", PLACE, str(folder))
    path = flight.dump(None)
    assert path is not None
    for waiting in (path, path.with_suffix(".part")):
        waiting.unlink(missing_ok=True)
        waiting.symlink_to(prey)
    flight.dump(None)
    assert prey.read_text() == "untouched"
    assert not path.is_symlink()


def test_without_a_folder_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Recorder("world", PLACE).dump(None) is None
    assert list(tmp_path.iterdir()) == []


def fail_in_a_merge(comm: Communicator) -> str:
    """Rank 1 leaves after one merge; the others stop in their second."""
    merge = TopKMerge(comm, 4, 8, strategy="gather", chunk_rows=2)
    try:
        for _ in range(1 if comm.rank == 1 else 2):
            merge(*rows_of(4))
    except DcpCommError:
        return comm.report()
    return ""


def test_a_communicator_that_dies_writes_what_led_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCP_COMM_TRACE_DIR", str(tmp_path))
    monkeypatch.setenv("DCP_COMM_CHECK", "merge")
    monkeypatch.setattr(recorder, "_ring", deque[Entry](maxlen=recorder.CALLS_KEPT))
    reports = run_ranks(fail_in_a_merge, 3)
    traces: dict[int, Any] = {}
    for path in tmp_path.iterdir():
        trace = json.loads(path.read_text())
        traces[trace["rank"]] = trace
    assert set(traces) == {0, 2}
    for rank, trace in traces.items():
        assert trace["cause"][0] == CommPeerLost.__name__
        own = [call for call in trace["calls"] if call["rank"] == rank]
        assert [call["number"] for call in own] == sorted(call["number"] for call in own)
        assert own[-1]["state"] == "failed"
        assert own[-1]["op"].startswith("merge rows=4")
        done = [(call["purpose"], call["step"]) for call in own if call["tensors"]][-2:]
        assert done == [("merge", 1), ("merge", 2)]
        assert "last call" in reports[rank]
        assert "failed" in reports[rank]


def test_a_folder_that_cannot_be_written_hides_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DCP_COMM_TRACE_DIR", "/nowhere/at/all")
    assert all(run_ranks(fail_in_a_merge, 3)[rank] for rank in (0, 2))
    assert "the flight recorder could not be written" in caplog.text
