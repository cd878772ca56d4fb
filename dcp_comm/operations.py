"""Operations: the calls that move bytes, alone or in a group, each checked before it is issued."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dcp_comm import contract
from dcp_comm.channel import Channel
from dcp_comm.contract import Call
from dcp_comm.errors import CommArgumentError, CommUsageError, refusal
from dcp_comm.streams import captures

Stream = torch.cuda.Stream


class Operations:
    """The half of a Communicator that callers use all day.

    Every operation raises CommArgumentError for a call that is not legal (nothing was sent),
    CommUsageError for two threads at once or a forked child, CommTimeout, CommPeerLost or
    CommMismatch when the group fails, and from then on the first cause again.

    Args:
        channel: The guarded way to the backend.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._queue: list[tuple[Call, Stream | None]] = []
        self._group_depth = 0

    def all_gather_into(
        self, output: torch.Tensor, input: torch.Tensor, *, stream: Stream | None = None
    ) -> None:
        """Gather every rank's input into ``output``, in rank order.

        Args:
            output: (size, *shape), or (size * shape[0], *shape[1:]); overwritten.
            input: (*shape), any dtype, the same on every rank; may be exactly slot ``rank`` of
                ``output``, which makes the call in place.
            stream: CUDA stream to enqueue on instead of torch's current one.
        """
        self._call(contract.all_gather_into(output, input, self._channel.place), stream)

    def all_to_all_into(
        self, output: torch.Tensor, input: torch.Tensor, *, stream: Stream | None = None
    ) -> None:
        """Send block d of ``input`` to rank d; block s of ``output`` comes from rank s.

        Args:
            output: (size * n, *rest); overwritten; no overlap with ``input``.
            input: The same shape and dtype; equal blocks on dim 0.
            stream: CUDA stream to enqueue on instead of torch's current one.
        """
        self._call(contract.all_to_all_into(output, input, self._channel.place), stream)

    def reduce_scatter_into(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        op: str = "sum",
        *,
        stream: Stream | None = None,
    ) -> None:
        """Reduce all ranks' inputs and keep slot ``rank`` of the result.

        Args:
            output: (*shape); overwritten; may be exactly slot ``rank`` of ``input``.
            input: (size, *shape), or (size * shape[0], *shape[1:]).
            op: sum, prod, max, min on fp16, bf16, fp32, fp64, int8, uint8, int32, int64; avg on the
                floats.
            stream: CUDA stream to enqueue on instead of torch's current one.
        """
        self._call(contract.reduce_scatter_into(output, input, op, self._channel.place), stream)

    def all_reduce(
        self, tensor: torch.Tensor, op: str = "sum", *, stream: Stream | None = None
    ) -> None:
        """Replace ``tensor`` by its reduction over all ranks.

        Args:
            tensor: Any shape; reduced in place.
            op: As in `reduce_scatter_into`.
            stream: CUDA stream to enqueue on instead of torch's current one.
        """
        self._call(contract.all_reduce(tensor, op, self._channel.place), stream)

    def broadcast(self, tensor: torch.Tensor, root: int, *, stream: Stream | None = None) -> None:
        """Copy the root's ``tensor`` over everybody's.

        Args:
            tensor: Any shape and dtype; overwritten on every rank but ``root``.
            root: The rank whose tensor is taken.
            stream: CUDA stream to enqueue on instead of torch's current one.
        """
        self._call(contract.broadcast(tensor, root, self._channel.place), stream)

    def send(self, tensor: torch.Tensor, peer: int, *, stream: Stream | None = None) -> None:
        """Send ``tensor`` to another rank, which calls `recv`; mutual pairs go into one `group`."""
        self._call(contract.send(tensor, peer, self._channel.place), stream)

    def recv(self, tensor: torch.Tensor, peer: int, *, stream: Stream | None = None) -> None:
        """Overwrite ``tensor`` with what another rank sends."""
        self._call(contract.recv(tensor, peer, self._channel.place), stream)

    def barrier(self) -> None:
        """Return when every rank has called it; the host waits, work enqueued on a GPU does not."""
        with self._channel.turn("barrier"):
            self._refuse_inside_group("barrier")
            self._channel.compare("barrier", 0)

    @contextmanager
    def group(self) -> Iterator[None]:
        """Check calls at once, issue them together at exit; their outputs are valid only after it.

        If the body raises, nothing is sent. Nested groups flatten into the outermost. All calls of
        one group go on one stream.
        """
        with self._channel.turn("group"):
            self._group_depth += 1
            try:
                yield
                if self._group_depth == 1 and self._queue:
                    stream = self._queue[0][1]
                    self._channel.issue([call for call, _ in self._queue], stream)
            finally:
                self._group_depth -= 1
                if self._group_depth == 0:
                    self._queue.clear()

    def _call(self, call: Call, stream: Stream | None) -> None:
        with self._channel.turn(call.op):
            stream = self._stream(call.op, stream)
            if self._group_depth == 0:
                self._channel.issue([call], stream)
            elif self._queue and self._queue[0][1] != stream:
                need = f"{self._queue[0][1]}, as the calls before it in this group"
                raise CommArgumentError(
                    refusal(call.op, "stream", stream, need, where=str(self._channel.place))
                )
            else:
                self._queue.append((call, stream))

    def _stream(self, op: str, stream: Stream | None) -> Stream | None:
        streams = self._channel.streams
        if streams is not None:
            return streams.current() if stream is None else stream
        if stream is not None:
            need = "None: CPU calls return when done"
            raise CommArgumentError(
                refusal(op, "stream", stream, need, where=str(self._channel.place))
            )
        return None

    def _refuse_while_capturing(self, what: str) -> None:
        streams = self._channel.streams
        if streams is not None and captures(streams.current()):
            raise CommUsageError(
                f"{what}: not while a CUDA graph is being captured ({self._channel.place}). Do it "
                "before"
            )

    def _refuse_inside_group(self, what: str) -> None:
        if self._group_depth:
            raise CommUsageError(
                f"{what}: not inside group() ({self._channel.place}). Leave the group first"
            )
