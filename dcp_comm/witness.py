"""Witness: follows one communicator's calls, so that one that fails can be accounted for.

It numbers what every rank counts, notes each call in the flight recorder, leaves word on the roll
when a wait gets long, and words who is missing when it fails. A call that goes well at once costs
one note in memory and nothing else.
"""

import logging
import time
from collections.abc import Sequence

from dcp_comm.contract import Call, Outline, Place
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.recorder import Entry, Recorder
from dcp_comm.roll import FAILED, PASSED, WAITS, Roll

_logger = logging.getLogger("dcp_comm")

_WHOLE_WAIT = 0.9


class Witness:
    """What one rank knows of its calls, and of where the others are.

    Args:
        name: The communicator's agreed name.
        place: This rank in it.
        timeout: Seconds that one call may wait for peers.
        roll: Where ranks leave word; None where peers see one another without it.
        folder: Where the flight recorder goes when the communicator dies; empty for nowhere.

    Attributes:
        number: Of the last call that every rank counts.
        purpose: What calls are made for, as `Communicator.announce` said; empty outside of it.
        step: Launches made for it so far.
    """

    def __init__(self, name: str, place: Place, timeout: float, roll: Roll | None, folder: str):
        self.number, self.purpose, self.step = 0, "", 0
        self._timeout, self._roll = timeout, roll
        self._on_gpu = place.device.type == "cuda"
        self.recorder = Recorder(name, place, folder)
        self._entry: Entry | None = None
        self._calls: list[Outline] = []
        self._counts = self._said = False

    def enter(self, purpose: str) -> None:
        """Note what the next calls are for."""
        self.purpose, self.step = purpose, 0

    def begin(self, what: str, calls: Sequence[Call], counts: bool) -> None:
        """Note that this rank may wait now.

        Args:
            what: In words.
            calls: Of a launch; none for a comparison.
            counts: Whether every rank makes it, and so counts it.
        """
        self.number += counts
        self._calls, self._counts = [call.outline for call in calls], counts
        self._entry = self.recorder.begin(self.number, what, self.purpose, self.step, calls)

    def late(self) -> None:
        """Leave word that this rank waits, and look whether others wait for something else.

        Raises:
            CommMismatch: One does, so that neither wait will end.
        """
        if self._roll is not None and self._counts:
            self._said = True
            self._roll.say(WAITS, self.number, self._text)
            self._roll.unless_apart(self.number, self._text)

    def end(self) -> None:
        """Note that the wait ended well."""
        if self._entry is not None:
            self._entry.end("enqueued" if self._on_gpu and self._calls else "done")
        if self._said and self._roll is not None:
            self._said = False
            self._roll.say(PASSED, self.number, self._text)

    def refuse(self) -> None:
        """Note that the call was refused before anything was sent: nobody counts it."""
        self.number -= self._counts
        self.fail()

    def fail(self) -> None:
        """Note that the wait ended with an error."""
        if self._entry is not None:
            self._entry.end("failed")

    def account(self, error: DcpCommError) -> str:
        """Word the call that failed, and which ranks did not come to it or are gone.

        Raises:
            CommMismatch: Others wait for something else.
        """
        if self._entry is None:
            return ""
        waited = time.monotonic() - self._entry.started
        told = ""
        if self._roll is not None and isinstance(error, CommPeerLost) and not self._on_gpu:
            told = self._roll.lost()
        if isinstance(error, CommTimeout) and waited > _WHOLE_WAIT * self._timeout:
            told = self._missing()
        return f"call {self.number}: {self._text}, after {waited:.1f} s{': ' if told else ''}{told}"

    def tell(self, cause: BaseException) -> None:
        """Leave word that this rank has failed, and write the flight recorder if asked to."""
        text = f"{type(cause).__name__}: {cause}"
        if self._roll is not None:
            self._roll.say(FAILED, self.number, text)
        try:
            path = self.recorder.dump(cause)
        except OSError as error:
            _logger.warning("the flight recorder could not be written: %s", error)
        else:
            if path is not None:
                _logger.error("%s\nThe last calls stand in %s", text, path)

    def _missing(self) -> str:
        peers = [call.peer for call in self._calls if not call.collective]
        if not self._counts:
            return f"waited for rank {', '.join(map(str, peers))}" if peers else ""
        if self._roll is None:
            return ""
        self._roll.unless_apart(self.number, self._text)
        return self._roll.missing(self.number, Deadline(self._timeout).patience)

    @property
    def _text(self) -> str:
        """The call in words that are the same on every rank."""
        op = self._entry.op if self._entry is not None else ""
        shared = "; ".join(str(call) for call in self._calls if call.collective)
        return in_purpose(shared or op, self.purpose, self.step)


def in_purpose(text: str, purpose: str, step: int) -> str:
    """Word a call together with what it is made for."""
    return f"{text} in {purpose}/{step}" if purpose else text
