"""The flight recorder: the last calls of this process, without their data, for when one fails.

Every communicator of a process notes its calls in one ring. When a communicator dies and
``DCP_COMM_TRACE_DIR`` names a folder, the ring is written there as JSON, readable by its owner
alone; `dcp_comm.tracefile` lines the files of several ranks up.
"""

import json
import os
import socket
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dcp_comm.contract import Call, Place

FORMAT = "dcp_comm trace 1"
CALLS_KEPT = 1000

Tensors = tuple[str, torch.dtype, torch.Size]


class Entry:
    """One call, as it was made and as it ended; holds no tensor."""

    __slots__ = (
        "communicator", "ended", "number", "op", "place", "purpose", "started", "state", "step",
        "tensors",
    )  # fmt: skip

    def __init__(
        self,
        communicator: str,
        place: Place,
        number: int,
        op: str,
        purpose: str,
        step: int,
        tensors: tuple[Tensors, ...],
    ) -> None:
        self.communicator, self.place, self.number, self.op = communicator, place, number, op
        self.purpose, self.step, self.tensors = purpose, step, tensors
        self.state, self.started, self.ended = "started", time.monotonic(), 0.0

    def end(self, state: str) -> None:
        """Note how and when it ended: ``done``, ``enqueued`` on a stream, or ``failed``."""
        self.state, self.ended = state, time.monotonic()

    def fields(self, offset: float) -> dict[str, Any]:
        """Return what JSON can hold; times in seconds since the epoch, by this host's clock."""
        return {
            "communicator": self.communicator,
            "rank": self.place.rank,
            "size": self.place.size,
            "number": self.number,
            "op": self.op,
            "purpose": self.purpose,
            "step": self.step,
            "state": self.state,
            "started": self.started + offset,
            "ended": self.ended + offset if self.ended else None,
            "tensors": [
                {
                    "op": op,
                    "dtype": str(dtype).removeprefix("torch."),
                    "shape": list(shape),
                    "bytes": shape.numel() * dtype.itemsize,
                }
                for op, dtype, shape in self.tensors
            ],
        }


_ring: deque[Entry] = deque(maxlen=CALLS_KEPT)


class Recorder:
    """Notes one communicator's calls in the ring of its process.

    Args:
        communicator: Its agreed name.
        place: This rank in it.
        folder: Where to write when it dies; empty for nowhere.
    """

    def __init__(self, communicator: str, place: Place, folder: str = "") -> None:
        self._communicator, self._place, self._folder = communicator, place, folder
        self.last: Entry | None = None

    def begin(
        self, number: int, op: str, purpose: str = "", step: int = 0, calls: Sequence[Call] = ()
    ) -> Entry:
        """Note that a call begins; its tensors by operation, dtype and shape alone."""
        payloads = [(call.op, call.payload) for call in calls]
        tensors = tuple([(op, payload.dtype, payload.shape) for op, payload in payloads])
        entry = Entry(self._communicator, self._place, number, op, purpose, step, tensors)
        _ring.append(entry)
        self.last = entry
        return entry

    def trace(self, cause: BaseException | None) -> dict[str, Any]:
        """Return what `dump` writes."""
        now, wall = time.monotonic(), time.time()
        return {
            "format": FORMAT,
            "communicator": self._communicator,
            "rank": self._place.rank,
            "size": self._place.size,
            "backend": self._place.backend,
            "host": socket.gethostname(),
            "process": os.getpid(),
            "written": wall,
            "cause": None if cause is None else [type(cause).__name__, str(cause)],
            "calls": [entry.fields(wall - now) for entry in list(_ring)],
        }

    def dump(self, cause: BaseException | None) -> Path | None:
        """Write the ring, in whole or not at all, mode 0600; None without a folder.

        Raises:
            OSError: The folder cannot be written.
        """
        if not self._folder:
            return None
        name = "".join(c if c.isalnum() or c in ".-" else "_" for c in self._communicator)
        path = Path(self._folder, f"{name}.rank{self._place.rank}.{os.getpid()}.json")
        draft = path.with_suffix(".part")
        draft.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(draft, flags, 0o600), "w") as file:
            json.dump(self.trace(cause), file)
        draft.replace(path)
        return path
