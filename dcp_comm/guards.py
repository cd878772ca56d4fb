"""What stands around every call of a Channel: turns of threads, and waits for peers.

Classes, because generators cost more than the rest of what they do.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommArgumentError, CommMismatch, CommUsageError, DcpCommError
from dcp_comm.poison import poison
from dcp_comm.tracing import span

if TYPE_CHECKING:
    from dcp_comm.channel import Channel


class Turn:
    """What `Channel.turn` returns; a class, because a generator costs more than the rest of it."""

    __slots__ = ("_channel", "_what")

    def __init__(self, channel: "Channel", what: str) -> None:
        self._channel, self._what = channel, what

    def __enter__(self) -> None:
        self._channel.enter(self._what)

    def __exit__(self, *_: object) -> None:
        self._channel.leave()


class Waiting:
    """Around whatever may wait for peers: a deadline, a witness, a latch for failures."""

    __slots__ = ("_calls", "_channel", "_counts", "_span", "_what")

    def __init__(self, channel: "Channel", what: str, calls: Sequence[Call], counts: bool) -> None:
        self._channel, self._what = channel, what
        self._calls, self._counts = calls, counts

    def __enter__(self) -> Deadline:
        channel = self._channel
        channel.busy = self._what
        channel.witness.begin(self._what, self._calls, self._counts)
        if channel.ranges:
            cuda = channel.place.device.type == "cuda"
            self._span = span(self._what, cuda=cuda)
            self._span.__enter__()
        return Deadline(channel.timeout, channel.latch, channel.witness.late)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        channel = self._channel
        channel.busy = ""
        if channel.ranges:
            self._span.__exit__(None, None, None)
        if error is None:
            channel.witness.end()
        elif is_refusal(error):
            channel.witness.refuse()
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Say what is known of the failure; who is latched dead already has said so."""
        channel = self._channel
        channel.witness.fail()
        if channel.debug:
            poison(*(call.output for call in self._calls if call.op != "send"))
        account = ""
        if isinstance(error, DcpCommError) and channel.latch.cause is None:
            try:
                account = channel.witness.account(error)
            except CommMismatch as mismatch:
                error = mismatch
        channel.react(self._what, error, account)


def is_refusal(error: BaseException) -> bool:
    """Whether a call was refused before anything was sent."""
    return isinstance(error, (CommArgumentError, CommUsageError))
