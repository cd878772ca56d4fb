"""Rules of ``group``: calls wait for its end and go as one."""

from contextlib import suppress

import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommUsageError
from dcp_comm.testing.conformance.buffers import Buffer, payload, poison
from dcp_comm.testing.conformance.rules import Check, Expect, rule

_COUNT = 31


class _Gather:
    """One gather whose output can be looked at later."""

    def __init__(self, comm: Communicator, what: str) -> None:
        self.comm, self.what = comm, what
        self.input = Buffer((_COUNT,), torch.uint8, comm.device)
        self.output = Buffer((comm.size, _COUNT), torch.uint8, comm.device)
        self.parts = [payload(what, rank, _COUNT) for rank in range(comm.size)]
        self.input.write(self.parts[comm.rank])

    def call(self) -> None:
        self.comm.all_gather_into(self.output.tensor, self.input.tensor)

    def expect_done(self, expect: Expect) -> None:
        expect.holds(self.output, torch.cat(self.parts), self.what)

    def expect_untouched(self, expect: Expect) -> None:
        expect.holds(self.output, poison(self.output.nbytes), f"{self.what}: nothing sent yet")


class _Deliberate(Exception):
    """Raised by a rule itself."""


@rule
def a_group_issues_at_its_end(comm: Communicator, expect: Expect) -> None:
    """Until then nothing moves; afterwards all outputs are valid."""
    gathers = [_Gather(comm, f"group {n}") for n in range(3)]
    total = torch.full((3,), comm.rank + 1, device=comm.device)
    before = comm.ledger.calls
    with comm.group():
        for gather in gathers:
            gather.call()
        comm.all_reduce(total)
        for gather in gathers:
            gather.expect_untouched(expect)
        expect.equal(comm.ledger.calls, before, "calls before the end of the group")
    for gather in gathers:
        gather.expect_done(expect)
    expect.equal(total.tolist(), [comm.size * (comm.size + 1) // 2] * 3, "all_reduce in a group")
    expect.equal(comm.ledger.calls, before + 4, "calls after the group")


@rule
def nested_groups_flatten(comm: Communicator, expect: Expect) -> None:
    """An inner group ends nothing; the outermost issues all."""
    outer, inner = _Gather(comm, "outer"), _Gather(comm, "inner")
    with comm.group():
        outer.call()
        with comm.group():
            inner.call()
        inner.expect_untouched(expect)
        outer.expect_untouched(expect)
    inner.expect_done(expect)
    outer.expect_done(expect)


@rule
def a_group_that_raises_sends_nothing(comm: Communicator, expect: Expect) -> None:
    """What was queued is forgotten, and the communicator goes on."""
    lost, kept = _Gather(comm, "lost"), _Gather(comm, "kept")
    with suppress(_Deliberate), comm.group():
        lost.call()
        raise _Deliberate
    with suppress(_Deliberate), comm.group(), comm.group():
        lost.call()
        raise _Deliberate
    with comm.group():
        kept.call()
    lost.expect_untouched(expect)
    kept.expect_done(expect)


@rule
def an_empty_group_is_legal(comm: Communicator, expect: Expect) -> None:
    """Nothing queued, nothing sent, nobody awaited."""
    before = comm.ledger.calls
    with comm.group():
        pass
    expect.equal(comm.ledger.calls, before, "calls after an empty group")


@rule
def collective_waits_are_refused_in_a_group(comm: Communicator, expect: Expect) -> None:
    """A barrier inside a group could never come true before what it waits for is sent."""
    with comm.group():
        with expect.refusal(CommUsageError, "barrier in a group", "group"):
            comm.barrier()
        with expect.refusal(CommUsageError, "agree in a group", "group"):
            comm.agree("rule", {})


@rule
def all_pairs_talk_at_once(comm: Communicator, expect: Expect) -> None:
    """Every rank sends to and receives from every other, several times, in one group."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    received = {
        (rank, turn): Buffer((_COUNT + turn,), torch.uint8, comm.device)
        for rank in others
        for turn in range(2)
    }
    with comm.group():
        for turn in range(2):
            for rank in others:
                words = f"pair {comm.rank} {rank} {turn}"
                sent = Buffer((_COUNT + turn,), torch.uint8, comm.device)
                comm.send(sent.write(payload(words, comm.rank, sent.nbytes)), rank)
                comm.recv(received[rank, turn].tensor, rank)
    for (rank, turn), buffer in received.items():
        words = f"pair {rank} {comm.rank} {turn}"
        expect.holds(buffer, payload(words, rank, buffer.nbytes), words)


@rule
def a_group_mixes_kinds(comm: Communicator, expect: Expect) -> None:
    """Collectives beside sends and receives, in one order on every rank."""
    first, last = _Gather(comm, "first of a mix"), _Gather(comm, "last of a mix")
    received = torch.full((2,), -1, device=comm.device)
    with comm.group():
        first.call()
        if comm.size > 1:
            own = torch.full((2,), comm.rank, device=comm.device)
            comm.send(own, (comm.rank + 1) % comm.size)
            comm.recv(received, (comm.rank - 1) % comm.size)
        last.call()
    first.expect_done(expect)
    last.expect_done(expect)
    source = (comm.rank - 1) % comm.size if comm.size > 1 else -1
    expect.equal(received.tolist(), [source] * 2, "recv in a mix")


CHECKS: tuple[Check, ...] = (
    a_group_issues_at_its_end,
    nested_groups_flatten,
    a_group_that_raises_sends_nothing,
    an_empty_group_is_legal,
    collective_waits_are_refused_in_a_group,
    all_pairs_talk_at_once,
    a_group_mixes_kinds,
)
