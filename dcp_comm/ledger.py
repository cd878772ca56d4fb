"""What travelled: logical bytes by operation, by nccl-tests' factors."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dcp_comm.contract import Call

FINGERPRINT = "fingerprint"


@dataclass
class Traffic:
    """Calls of one kind and the logical bytes that they moved on this rank."""

    calls: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


class Ledger:
    """Counts every call that was issued; replays of a CUDA graph are not seen and not counted.

    Bytes are logical: all-gather (size-1) x input, all-to-all (size-1)/size of the input,
    reduce-scatter (size-1) x output, all-reduce 2(size-1)/size of the tensor, broadcast the tensor
    once; sent equals received by symmetry. ``send`` and ``recv`` count on their own side. What the
    control plane moves stands in ``by_op["fingerprint"]`` and not in the totals.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.by_op: dict[str, Traffic] = {}

    @property
    def calls(self) -> int:
        """Calls issued, control plane apart."""
        return sum(each.calls for each in self._payload())

    @property
    def bytes_sent(self) -> int:
        """Bytes sent, control plane apart."""
        return sum(each.bytes_sent for each in self._payload())

    @property
    def bytes_received(self) -> int:
        """Bytes received, control plane apart."""
        return sum(each.bytes_received for each in self._payload())

    def reset(self) -> None:
        """Forget everything."""
        self.by_op.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is issued inside, such as a warm-up."""
        kept = {op: replace(traffic) for op, traffic in self.by_op.items()}
        try:
            yield
        finally:
            self.by_op = kept

    def count(self, call: Call) -> None:
        """Add one issued call."""
        moved = self._logical_bytes(call)
        self._add(call.op, 0 if call.op == "recv" else moved, 0 if call.op == "send" else moved)

    def count_control(self, record_bytes: int) -> None:
        """Add one exchange of the control plane."""
        moved = (self._size - 1) * record_bytes
        self._add(FINGERPRINT, moved, moved)

    def _logical_bytes(self, call: Call) -> int:
        others, size = self._size - 1, self._size
        match call.op:
            case "all_gather_into" | "reduce_scatter_into":
                return others * call.nbytes
            case "all_to_all_into":
                return others * call.nbytes // size
            case "all_reduce":
                return 2 * others * call.nbytes // size
            case "broadcast" if others == 0:
                return 0
        return call.nbytes

    def _add(self, op: str, sent: int, received: int) -> None:
        traffic = self.by_op.get(op)
        if traffic is None:
            traffic = self.by_op[op] = Traffic()
        traffic.calls += 1
        traffic.bytes_sent += sent
        traffic.bytes_received += received

    def _payload(self) -> list[Traffic]:
        return [traffic for op, traffic in self.by_op.items() if op != FINGERPRINT]
