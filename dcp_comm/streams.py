"""StreamOrder: the calls of one communicator run in the order they were made, on any stream."""

import torch

Stream = torch.cuda.Stream


class StreamOrder:
    """Joins the streams from which one communicator is used.

    NCCL takes the calls of a communicator from one stream at a time. A call on another stream than
    the call before first waits, on the GPU, for all that the other stream holds by then. A call
    that is being captured is not joined to one that is not: a graph runs when it is replayed, and
    replays of one communicator are for the caller to order. A stream that is not torch's own has to
    live until the communicator is used on another one.
    """

    def __init__(self) -> None:
        self._last: Stream | None = None

    def enter(self, stream: Stream) -> None:
        """Order what comes next on ``stream`` after what went before on another one."""
        last, self._last = self._last, stream
        if last is not None and last != stream and _captures(last) == _captures(stream):
            stream.wait_event(last.record_event())


def _captures(stream: Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()
