"""The guards of every call: one thread, one process, dead stays dead, everything counted."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dcp_comm.backend import Capabilities, SoloBackend
from dcp_comm.channel import EVERY_CALL_LEVEL, MERGE_LEVEL, Channel
from dcp_comm.contract import Call
from dcp_comm.control import Control, SoloControl
from dcp_comm.deadline import Deadline
from dcp_comm.errors import (
    CommArgumentError,
    CommClosed,
    CommMismatch,
    CommPeerLost,
    CommTimeout,
    CommUsageError,
    DcpCommError,
)
from dcp_comm.settings import Settings

CPU = torch.device("cpu")


class Spy(SoloBackend):
    """Notes what it is asked for, and fails when it is told to."""

    capabilities = Capabilities(devices=("cpu",))

    def __init__(self) -> None:
        super().__init__("spy", CPU)
        self.asked: list[str] = []
        self.failure: BaseException | None = None
        self.during: Callable[[], Any] = lambda: None

    def issue(
        self, calls: Sequence[Call], stream: torch.cuda.Stream | None, deadline: Deadline
    ) -> None:
        self.asked += [call.op for call in calls]
        self.during()
        self._fail()

    def check(self) -> None:
        self._fail()

    def abort(self) -> None:
        self.asked.append("abort")

    def close(self, deadline: Deadline) -> None:
        self.asked.append("close")
        self._fail()

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


class Echo(SoloControl):
    """Counts exchanges; answers as if the other rank sent what it is told."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.other: bytes | None = None

    def exchange(self, record: bytes, deadline: Deadline) -> list[bytes]:
        self.records.append(record)
        return [record, self.other or record]


def channel(check: str = "0", control: Control | None = None) -> tuple[Channel, Spy]:
    spy = Spy()
    return Channel(spy, control or Echo(), "test", 5.0, Settings(check=check)), spy


def call(op: str = "all_reduce", count: int = 3) -> Call:
    tensor = torch.zeros(count)
    return Call(op, tensor, tensor, reduce="sum")


def test_calls_go_down_together_and_are_counted() -> None:
    guarded, spy = channel()
    guarded.issue([call(), call("broadcast")], None)
    assert spy.asked == ["all_reduce", "broadcast"]
    assert guarded.ledger.calls == 2


def test_empty_calls_are_counted_and_stay_here() -> None:
    guarded, spy = channel()
    guarded.issue([call(count=0)], None)
    assert (spy.asked, guarded.ledger.calls) == ([], 1)


@pytest.mark.parametrize(
    ("check", "merges", "calls"),
    [("0", False, False), ("merge", True, False), ("all", True, True), ("", True, False)],
)
def test_levels(check: str, merges: bool, calls: bool) -> None:
    control = Echo()
    guarded, _ = channel(check, control)
    assert guarded.checks(MERGE_LEVEL) == merges
    assert guarded.checks(EVERY_CALL_LEVEL) == calls
    guarded.issue([call()], None)
    assert len(control.records) == int(calls)


def test_a_group_is_compared_once_and_pairs_never() -> None:
    control = Echo()
    guarded, _ = channel("all", control)
    guarded.issue([call(), call("send"), call("broadcast")], None)
    guarded.issue([call("send"), call("recv")], None)
    assert len(control.records) == 1


def test_sends_and_receives_do_not_put_ranks_out_of_step() -> None:
    mine, theirs = Echo(), Echo()
    one, _ = channel("all", mine)
    other, _ = channel("all", theirs)
    one.issue([call("send")], None)
    for guarded in (one, other):
        guarded.issue([call()], None)
    assert mine.records == theirs.records


def test_the_number_of_a_call_is_part_of_its_fingerprint() -> None:
    control = Echo()
    guarded, _ = channel("all", control)
    guarded.issue([call()], None)
    guarded.issue([call()], None)
    assert control.records[0] != control.records[1]


def test_a_call_that_others_do_not_make_moves_nothing_and_is_fatal() -> None:
    control = Echo()
    guarded, spy = channel("all", control)
    guarded.issue([call()], None)
    control.other = control.records[0]
    with pytest.raises(CommMismatch, match=r"rank 0: call 3: .*\n.*rank 1: call 1: ") as caught:
        guarded.issue([call()], None)
    assert "(rank 0 of 1, backend spy, communicator 'test')" in str(caught.value)
    assert spy.asked == ["all_reduce", "abort"]
    with pytest.raises(CommMismatch), guarded.turn("all_reduce"):
        pass


@pytest.mark.parametrize("kind", [CommTimeout, CommPeerLost, CommMismatch, DcpCommError])
def test_the_first_failure_answers_for_ever(kind: type[DcpCommError]) -> None:
    guarded, spy = channel()
    spy.failure = kind("first")
    for text in ("first", "second"):
        with pytest.raises(kind, match="first") as caught, guarded.turn("all_reduce"):
            guarded.issue([call()], None)
        assert str(caught.value).count("backend spy") == 1
        spy.failure = kind(text)
    assert spy.asked == ["all_reduce", "abort"]
    with pytest.raises(kind, match="first"):
        guarded.check()


def test_a_failure_inside_a_failure_is_worded_once() -> None:
    guarded, spy = channel()
    spy.failure = CommTimeout("late")
    with pytest.raises(CommTimeout) as caught, guarded.failing("outer"):
        guarded.issue([call()], None)
    assert str(caught.value).count("rank 0 of 1") == 1


@pytest.mark.parametrize("kind", [CommArgumentError, CommUsageError])
def test_refusals_kill_nothing(kind: type[DcpCommError]) -> None:
    guarded, spy = channel()
    spy.failure = kind("no")
    with pytest.raises(kind):
        guarded.issue([call()], None)
    spy.failure = None
    guarded.issue([call()], None)
    guarded.check()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError("full"), ZeroDivisionError()])
def test_anything_else_leaves_ranks_in_doubt_and_kills(error: BaseException) -> None:
    guarded, spy = channel()
    spy.failure = error
    with pytest.raises(type(error)):
        guarded.issue([call()], None)
    with pytest.raises(CommClosed, match=f"all_reduce: ended by {type(error).__name__}"):
        guarded.check()
    assert spy.asked[-1] == "abort"


def test_what_the_backend_finds_out_later_is_fatal_too() -> None:
    guarded, spy = channel()
    guarded.check()
    spy.failure = CommPeerLost("asynchronously")
    with pytest.raises(CommPeerLost, match="asynchronously"):
        guarded.check()
    spy.failure = None
    with pytest.raises(CommPeerLost, match="asynchronously"):
        guarded.check()


def test_a_second_thread_is_refused_and_the_first_goes_on() -> None:
    guarded, spy = channel()
    refused = []

    def intrude() -> None:
        with pytest.raises(CommUsageError, match="broadcast: another thread is inside") as caught:
            guarded.turn("broadcast").__enter__()
        refused.append(caught.value)

    def during() -> None:
        thread = threading.Thread(target=intrude)
        thread.start()
        thread.join()

    spy.during = during
    with guarded.turn("all_reduce"):
        guarded.issue([call()], None)
    assert len(refused) == 1
    guarded.check()


def test_threads_may_take_turns() -> None:
    guarded, spy = channel()

    def work() -> None:
        with guarded.turn("all_reduce"):
            guarded.issue([call()], None)

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert spy.asked == ["all_reduce"] * 3


def test_a_signal_handler_may_not_call_from_within_a_call() -> None:
    guarded, spy = channel()

    def during() -> None:
        with pytest.raises(CommUsageError, match="barrier: called from within all_reduce"):
            guarded.turn("barrier").__enter__()

    spy.during = during
    with guarded.turn("all_reduce"):
        guarded.issue([call()], None)
    with guarded.turn("barrier"):
        pass


def test_a_forked_child_is_refused_and_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded, spy = channel()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(CommUsageError, match="all_reduce: used in a forked child"):
            guarded.turn("all_reduce").__enter__()
        guarded.close(1.0)
    assert spy.asked == []
    guarded.check()


def test_closing_is_final_and_done_once() -> None:
    guarded, spy = channel()
    for _ in range(3):
        guarded.close(1.0)
    assert spy.asked == ["close"]
    with pytest.raises(CommClosed, match="communicator 'test' was closed"):
        guarded.check()


def test_a_close_that_fails_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    guarded, spy = channel()
    spy.failure = CommTimeout("shutting down: not finished within 1 s")
    with caplog.at_level(logging.WARNING, "dcp_comm"):
        guarded.close(1.0)
    assert "close of 'test' left something behind: shutting down" in caplog.text


def test_control_records_are_counted_apart() -> None:
    guarded, _ = channel("all")
    guarded.issue([call()], None)
    guarded.consult("agree", bytes(1024))
    assert guarded.ledger.calls == 1
    assert guarded.ledger.by_op["fingerprint"].calls == 3
