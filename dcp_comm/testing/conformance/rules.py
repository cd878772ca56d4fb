"""What a rule is: a body that makes calls on a communicator and notes what it did not expect."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps

from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import DcpCommError
from dcp_comm.testing.conformance.buffers import Buffer

Check = Callable[[Communicator], None]

_SHOWN = 4


class ConformanceFailure(AssertionError):
    """A rule was broken; says where, rank by rank."""


class Expect:
    """Notes what did not hold, for the end of a rule.

    A rule that stopped at its first finding would leave its peers waiting in the next call.
    """

    def __init__(self, comm: Communicator) -> None:
        self._where, self.findings = comm.where, list[str]()

    def that(self, holds: bool, finding: str) -> None:
        """Note ``finding`` unless it holds."""
        if not holds:
            self.findings.append(finding)

    def equal(self, got: object, want: object, what: str) -> None:
        """Compare two plain values."""
        self.that(got == want, f"{what}: got {got}, need {want}")

    def holds(self, buffer: Buffer, data: Tensor, what: str) -> None:
        """Compare a buffer's bytes with ``data`` (uint8, 1-D, CPU), and look at its guards."""
        found = buffer.read()
        wrong = (found != data).nonzero().flatten().tolist()
        if wrong:
            first = wrong[0]
            self.findings.append(
                f"{what}: {len(wrong)} of {len(data)} bytes differ, the first at byte {first}: "
                f"got {found[first]:#04x}, need {data[first]:#04x}"
            )
        self.that(buffer.is_guarded(), f"{what}: memory beside the tensor was written")

    def close_to(self, got: Tensor, want: Tensor, tolerance: float, what: str) -> None:
        """Compare two CPU tensors of one dtype, element by element."""
        distance = (got.double() - want.double()).abs().max().item() if want.numel() else 0.0
        off = not distance <= tolerance or math.isnan(distance)
        self.that(not off, f"{what}: off by {distance:g}, at most {tolerance:g} is legal")

    @contextmanager
    def refusal(self, kind: type[DcpCommError], what: str, *words: str) -> Iterator[None]:
        """Expect an error of exactly this kind whose message holds the words."""
        try:
            yield
        except DcpCommError as error:
            self.that(type(error) is kind, f"{what}: {type(error).__name__} instead of {kind}")
            missing = [word for word in words if word not in str(error)]
            self.that(not missing, f"{what}: {error} does not say {missing}")
        else:
            self.findings.append(f"{what}: was not refused")

    def conclude(self) -> None:
        """Raise what was found.

        Raises:
            ConformanceFailure: Something did not hold.
        """
        if self.findings:
            shown = "; ".join(self.findings[:_SHOWN])
            more = len(self.findings) - _SHOWN
            rest = f"; and {more} more" if more > 0 else ""
            raise ConformanceFailure(f"{self._where}: {shown}{rest}")


def rule(body: Callable[[Communicator, Expect], None]) -> Check:
    """Make a check of a rule's body: run it to its end, then raise what it noted."""

    @wraps(body)
    def check(comm: Communicator) -> None:
        expect = Expect(comm)
        try:
            body(comm, expect)
        except Exception as error:
            for finding in expect.findings:
                error.add_note(finding)
            raise
        expect.conclude()

    return check
