"""The order between the streams of one communicator."""

import pytest
import torch

from dcp_comm import streams
from dcp_comm.streams import Streams

GPU = torch.device("cuda", 0)


class Stream:
    """Notes what it is told to wait for."""

    def __init__(self, name: str) -> None:
        self.name, self.waits = name, list[str]()

    def record_event(self) -> str:
        return f"all of {self.name}"

    def wait_event(self, event: str) -> None:
        self.waits.append(event)


def enter(order: Streams, *those: Stream) -> None:
    for stream in those:
        order.enter(stream)  # type: ignore[arg-type]


def test_a_call_on_another_stream_waits_for_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "captures", lambda stream: False)
    one, other, order = Stream("one"), Stream("other"), Streams(GPU)
    enter(order, one, one, one)
    assert (one.waits, other.waits) == ([], [])
    enter(order, other, other, one)
    assert (one.waits, other.waits) == (["all of other"], ["all of one"])


def test_streams_of_one_capture_are_ordered_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "captures", lambda stream: True)
    one, other = Stream("one"), Stream("other")
    enter(Streams(GPU), one, other)
    assert other.waits == ["all of one"]


def test_captured_and_eager_calls_are_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event recorded outside a capture cannot be waited for inside."""
    monkeypatch.setattr(streams, "captures", lambda stream: stream.name == "captured")
    eager, captured = Stream("eager"), Stream("captured")
    enter(Streams(GPU), eager, captured, eager)
    assert (eager.waits, captured.waits) == ([], [])
