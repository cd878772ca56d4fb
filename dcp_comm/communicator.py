"""Communicator: what users hold; every call is checked, counted, then handed to its Backend.

How a call goes:

1. `dcp_comm.contract` checks the tensors; a refused call touched nothing and told nobody;
2. the communicator is alive, in its own process, and no other thread is inside it;
3. inside ``group()`` the call waits in a queue; otherwise it is issued at once;
4. at ``DCP_COMM_CHECK=all`` the ranks compare a fingerprint of it over the control plane;
5. the backend moves the bytes, bounded by ``timeout``; the ledger counts them.

A timeout, a lost peer or a mismatch latches the communicator dead: every later call raises the
first cause. On CUDA calls are enqueued on torch's current stream (or ``stream``) and return at
once; on CPU they return when the outputs are valid.
"""

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch

from dcp_comm import agreement, names, warmup
from dcp_comm.agreement import Fields
from dcp_comm.backend import Backend, Capabilities, SoloBackend
from dcp_comm.channel import MERGE_LEVEL, Channel
from dcp_comm.control import Control, SoloControl
from dcp_comm.deadline import Deadline, seconds
from dcp_comm.errors import CommArgumentError, CommClosed, CommMismatch, refusal
from dcp_comm.footprint import Footprint
from dcp_comm.ledger import Ledger
from dcp_comm.operations import Operations
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.settings import Settings

_logger = logging.getLogger("dcp_comm")


class Communicator(Operations):
    """One rank's handle on a group of ranks that move bytes between their buffers.

    Made by `dcp_comm.init`, `from_process_group`, `adopt_nccl`, `split`, or by
    `dcp_comm.testing.run_ranks`.
    A context manager. Buffers belong to the caller, are contiguous, of one dtype, on ``device``.
    Threads may take turns; two at once are refused.

    Args:
        backend: What moves the bytes; closed with the communicator.
        control: Where ranks compare notes; closed with the communicator.
        rendezvous: Where the ranks met; parts of the group will meet there too.
        settings: What the environment asks for.
        footprint: Where the memory that connecting took was noted.

    Attributes:
        rank: This rank, from 0.
        size: Number of ranks.
        device: Where all tensors of all calls live.
        backend: The backend's name.
        name: The group's agreed name.
        timeout: Seconds that one call may wait for peers.
        capabilities: What the backend can do.
        where: ``rank r of w, backend b``, as errors word it.
        ledger: Logical bytes moved so far, by operation.
        footprint: GPU memory outside torch's allocator, by the stage that took it.
    """

    def __init__(
        self,
        backend: Backend,
        control: Control,
        rendezvous: Rendezvous,
        settings: Settings,
        footprint: Footprint | None = None,
    ) -> None:
        self.rank, self.size, self.device = backend.rank, backend.size, backend.device
        self.backend: str = backend.name
        self.capabilities: Capabilities = backend.capabilities
        self.name, self.timeout = rendezvous.name, rendezvous.timeout
        super().__init__(Channel(backend, control, self.name, self.timeout, settings))
        self.where = str(self._channel.place)
        self._rendezvous, self._settings, self._splits = rendezvous, settings, 0
        self.footprint = footprint or Footprint(self.device)
        self._library = type(backend).library(self.device)
        _logger.info("%s: %s, %s, %s", self.name, self.where, self.device, self._library)

    def __repr__(self) -> str:
        state = "dead" if self._channel.latch.cause else "alive"
        return f"Communicator({self.name!r}, {self.where}, {self.device}, {state})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort()
        self.close()

    def report(self) -> str:
        """Lay out who this is, what moves its bytes, and what that costs on the GPU."""
        lines = [f"{self!r}", f"library   {self._library or '-'}"]
        for stage, nbytes in self.footprint.by_stage.items():
            lines.append(f"{stage:<9} {nbytes / 2**20:,.1f} MiB of {self.device}")
        last = self._channel.witness.recorder.last
        if last is not None:
            lines.append(f"last call {last.number}: {last.op}, {last.state}")
        return "\n".join(lines)

    @property
    def debug(self) -> bool:
        """Whether ``DCP_COMM_DEBUG`` asks to overwrite what nobody may read any more."""
        return self._channel.debug

    @property
    def ledger(self) -> Ledger:
        """Logical bytes moved so far, by operation."""
        return self._channel.ledger

    def agree(
        self, purpose: str, fields: Mapping[str, object], local: Mapping[str, object] | None = None
    ) -> list[Fields]:
        """Have every rank confirm the same options; collective, over the control plane.

        Args:
            purpose: What is being agreed on, for the error.
            fields: Must be equal on every rank, compared as text.
            local: May differ; what each rank gave comes back.

        Returns:
            Every rank's fields and local fields, as text, in rank order.

        Raises:
            CommMismatch: On every rank, with a table of the fields that differ.
        """
        own = dict(local or {})
        with self._channel.turn(purpose):
            self._refuse_inside_group("agree")
            with self._channel.failing(purpose):
                records = self._channel.consult(
                    f"agree {purpose}", agreement.encode({**fields, **own})
                )
                ranks = [agreement.decode(record, rank) for rank, record in enumerate(records)]
                agreement.compare(purpose, ranks, may_differ=own)
            return ranks

    def announce(self, purpose: str, **fields: object) -> None:
        """Say what the next calls are for; compare that, if ``DCP_COMM_CHECK`` asks for it.

        Until `conclude` or the next announcement it stands in comparisons, errors and traces. On
        CUDA the comparison runs on the current stream, and `check` or the next one tells of it.

        Raises:
            CommMismatch: On every rank, with a line a rank.
        """
        with self._channel.turn(purpose):
            self._refuse_inside_group(purpose)
            self._channel.witness.enter("")
            with self._channel.failing(purpose):
                self._channel.announce(purpose, fields)
            self._channel.witness.enter(purpose)

    def conclude(self) -> None:
        """Compare that all ranks made as many calls as this one since `announce`.

        Only then is what they brought known to belong together: a rank that leaves out one of
        several equal calls takes the next one's data for it, and ends without an error.

        Raises:
            CommMismatch: On every rank that gets here, naming both sides.
            CommTimeout: A rank did not get here, but waits in another call or nowhere.
        """
        witness = self._channel.witness
        with self._channel.turn("conclude"):
            self._refuse_inside_group("conclude")
            if witness.purpose and self._channel.checks(MERGE_LEVEL):
                self._channel.compare("end", witness.step)
            witness.enter("")

    def split(self, color: int | None, key: int = 0) -> "Communicator | None":
        """Make a communicator of the ranks that give the same color; every rank calls it.

        Args:
            color: Which part this rank joins; None for none.
            key: Ranks of the part are ordered by (key, rank here).

        Returns:
            The part's communicator, which outlives this one; None for color None.

        Raises:
            CommArgumentError: ``color`` or ``key`` is no whole number.
        """
        self._unless_whole(color=0 if color is None else color, key=key)
        self._refuse_while_capturing("split")
        ranks = self.agree("split", {}, {"color": color, "key": key})
        self._splits += 1
        order = sorted(range(self.size), key=lambda rank: (int(ranks[rank]["key"]), rank))
        members = tuple(rank for rank in order if ranks[rank]["color"] == str(color))
        name = f"{self.name}/{self._splits}.{color}"
        with self._channel.turn("split"), self._channel.failing("split"):
            return self._child(name, None if color is None else members)

    def prepare(self, max_bytes: int) -> None:
        """Make every connection and buffer that calls will need; collective.

        To be called before memory is profiled: libraries connect lazily, at the first call of each
        kind and size, and what they allocate stays. Every kind of call runs here once small and
        once large, on temporary tensors, and is counted by the ledger.

        Args:
            max_bytes: The largest number of bytes that one call's larger tensor will have.

        Raises:
            CommArgumentError: ``max_bytes`` is no whole number above 0.
        """
        self._unless_whole(max_bytes=max_bytes)
        if max_bytes <= 0:
            raise CommArgumentError(
                refusal("prepare", "max_bytes", max_bytes, "at least 1", where=self.where)
            )
        self._refuse_while_capturing("prepare")
        self.agree("prepare", {"max_bytes": max_bytes})
        with self.footprint.stage("prepare"):
            warmup.run(self, max_bytes)
            self._channel.settle("prepare")
            self.barrier()

    def verify_order(self) -> None:
        """Gather every rank's number through the backend itself and compare; collective.

        Raises:
            CommMismatch: A slot holds another rank's data.
        """
        slots = torch.full((self.size,), -1, dtype=torch.int64, device=self.device)
        self.all_gather_into(slots, torch.tensor(self.rank, device=self.device))
        self._channel.settle("verify_order")
        found = slots.tolist()
        if found != list(range(self.size)):
            error = CommMismatch(f"slot order: got {found}, need rank order ({self.where})")
            self._channel.kill(error)
            raise error

    def check(self) -> None:
        """Raise if the communicator is dead or its backend has failed behind the host's back."""
        self._channel.check()

    def abort(self) -> None:
        """Latch dead at once, from any thread; peers that wait for this rank find out."""
        self._channel.kill(CommClosed(f"communicator {self.name!r} was aborted ({self.where})"))

    def close(self, timeout: float = 5.0) -> None:
        """Release everything within ``timeout`` seconds; again and in any state is fine."""
        names.forget(self)
        self._channel.close(seconds(timeout, "close", "timeout"))

    def _child(self, name: str, members: tuple[int, ...] | None) -> "Communicator | None":
        """Every rank passes here, so that a backend may split collectively."""
        child = None
        if members is not None:
            deadline = Deadline(self.timeout, self._channel.latch)
            child = self._rendezvous.child(name, members, deadline)
        shared = child if child is not None and child.size > 1 else None
        footprint = Footprint(self.device)
        with footprint.stage("connect"), ExitStack() as undo:
            backend = self._channel.backend.split(shared, members or ())
            if backend is not None:
                undo.callback(backend.abort)
            control = self._channel.control.split(shared, members or ())
            if control is not None:
                undo.callback(control.close)
            if child is None:
                return None
            part = Communicator(
                backend or SoloBackend(self.backend, self.device),
                control or SoloControl(),
                child,
                self._settings,
                footprint,
            )
            part.verify_order()
            undo.pop_all()
        return part

    def _unless_whole(self, **arguments: object) -> None:
        for name, value in arguments.items():
            if not isinstance(value, int) or isinstance(value, bool):
                need = "a whole number"
                raise CommArgumentError(
                    refusal("Communicator", name, repr(value), need, where=self.where)
                )
