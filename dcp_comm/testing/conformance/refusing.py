"""Rules of refusals: a call that is not legal is worded, harmless, and kills nothing."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.testing.conformance.buffers import Buffer, payload, poison
from dcp_comm.testing.conformance.moving import gather
from dcp_comm.testing.conformance.rules import Check, Expect, rule

_COUNT = 8


class Scene:
    """Buffers that are legal together, for illegal calls to spoil one of them.

    ``output`` is (size, 8), ``input`` (8), ``half`` the first half of the output as (size, 4).
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm, self.gather, self.next = comm, comm.all_gather_into, (comm.rank + 1) % comm.size
        self.output_buffer = Buffer((comm.size, _COUNT), torch.float32, comm.device)
        self.input_buffer = Buffer((_COUNT,), torch.float32, comm.device)
        self.data = payload("refusal", comm.rank, self.input_buffer.nbytes)
        self.output, self.input = self.output_buffer.tensor, self.input_buffer.write(self.data)
        self.half = self.output.view(-1)[: 4 * comm.size].view(comm.size, 4)

    def conjugate_views(self) -> tuple[Tensor, Tensor]:
        """An output, and an input of the right shape whose conjugation is only promised."""
        output = self.output.view(-1, 4, 2).view(torch.complex64)
        return output, self.input.view(4, 2).view(torch.complex64).conj()


class Refused(NamedTuple):
    """One illegal call: what is wrong, which argument the error must name, the call itself."""

    what: str
    argument: str
    call: Callable[[Scene], object]


GATHERS = (
    Refused("no tensor", "input", lambda s: s.gather(s.output, [0.0] * 8)),  # type: ignore[arg-type]
    Refused("no tensor", "output", lambda s: s.gather(None, s.input)),  # type: ignore[arg-type]
    Refused("other dtype", "output", lambda s: s.gather(s.output.view(torch.int32), s.input)),
    Refused("too small", "output", lambda s: s.gather(s.output.view(-1)[:-1], s.input)),
    Refused("too large", "output", lambda s: s.gather(s.output, s.input[:-1])),
    Refused("other shape", "output", lambda s: s.gather(s.output, s.input.view(2, 4))),
    Refused("strided", "input", lambda s: s.gather(s.half, s.input[::2])),
    Refused("expanded", "input", lambda s: s.gather(s.output, s.input[:1].expand(_COUNT))),
    Refused("strided", "output", lambda s: s.gather(s.output[:, ::2], s.input[:4])),
    Refused("meta", "output", lambda s: s.gather(s.output.to("meta"), s.input)),
    Refused("sparse", "input", lambda s: s.gather(s.output, s.input.to_sparse())),
    Refused("autograd", "output", lambda s: s.gather(_with_grad(s.output), s.input)),
    Refused("shifted", "input", lambda s: s.gather(s.half, s.output.view(-1)[1:5])),
    Refused("a lazy view", "input", lambda s: s.gather(*s.conjugate_views())),
)
BLOCKS = (
    Refused(
        "other shape", "output", lambda s: s.comm.all_to_all_into(s.output, s.output.view(-1) + 1)
    ),
    Refused("0-d", "input", lambda s: s.comm.all_to_all_into(s.output, s.input[0])),
    Refused("in place", "input", lambda s: s.comm.all_to_all_into(s.output, s.output)),
    Refused(
        "too small",
        "input",
        lambda s: s.comm.reduce_scatter_into(s.input, s.output.view(-1)[:-1]),
    ),
)
REDUCTIONS = (
    Refused("unknown", "op", lambda s: s.comm.all_reduce(s.output, "xor")),
    Refused("no word", "op", lambda s: s.comm.all_reduce(s.output, None)),  # type: ignore[arg-type]
    Refused("complex", "tensor", lambda s: s.comm.all_reduce(s.output.view(torch.complex64))),
    Refused("bool", "tensor", lambda s: s.comm.all_reduce(s.output.view(torch.bool))),
    Refused("avg of int", "tensor", lambda s: s.comm.all_reduce(s.output.view(torch.int32), "avg")),
    Refused(
        "avg of int",
        "input",
        lambda s: s.comm.reduce_scatter_into(
            s.input.view(torch.int32), s.output.view(torch.int32), "avg"
        ),
    ),
)
PEERS = (
    Refused("below", "root", lambda s: s.comm.broadcast(s.output, -1)),
    Refused("beyond", "root", lambda s: s.comm.broadcast(s.output, s.comm.size)),
    Refused("bool", "root", lambda s: s.comm.broadcast(s.output, False)),
    Refused("float", "root", lambda s: s.comm.broadcast(s.output, 0.0)),  # type: ignore[arg-type]
    Refused("itself", "peer", lambda s: s.comm.send(s.input, s.comm.rank)),
    Refused("itself", "peer", lambda s: s.comm.recv(s.input, s.comm.rank)),
    Refused("beyond", "peer", lambda s: s.comm.send(s.input, s.comm.size)),
    Refused("strided", "tensor", lambda s: s.comm.send(s.input[::2], s.next)),
    Refused("autograd", "tensor", lambda s: s.comm.recv(_with_grad(s.output), s.next)),
)
OPTIONS = (
    Refused("no number", "key", lambda s: s.comm.split(0, "1")),  # type: ignore[arg-type]
    Refused("float", "color", lambda s: s.comm.split(1.0)),  # type: ignore[arg-type]
    Refused("zero", "max_bytes", lambda s: s.comm.prepare(0)),
    Refused("negative", "timeout", lambda s: s.comm.close(-1.0)),
    Refused("endless", "timeout", lambda s: s.comm.close(float("inf"))),
)
TABLE = (*GATHERS, *BLOCKS, *REDUCTIONS, *PEERS, *OPTIONS)


def _with_grad(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_()


def _make_all(comm: Communicator, expect: Expect) -> None:
    """Make each illegal call; its buffers must be as before, and nothing counted."""
    scene, before = Scene(comm), comm.ledger.calls
    for case in TABLE:
        what = f"{case.argument} {case.what}"
        with expect.refusal(CommArgumentError, what, f"{case.argument}: got", "need"):
            case.call(scene)
    untouched = poison(scene.output_buffer.nbytes)
    expect.holds(scene.output_buffer, untouched, "output of refused calls")
    expect.holds(scene.input_buffer, scene.data, "input of refused calls")
    expect.equal(comm.ledger.calls, before, "calls after refusals")


@rule
def illegal_calls_are_refused(comm: Communicator, expect: Expect) -> None:
    """On every rank, before anything is sent, naming argument, got and need; then life goes on."""
    _make_all(comm, expect)
    gather(comm, expect, (17,), torch.float32)


@rule
def a_refusal_on_one_rank_is_its_own_affair(comm: Communicator, expect: Expect) -> None:
    """Its peers wait in the legal call until that rank has made it too."""
    for rank in range(comm.size):
        if comm.rank == rank:
            _make_all(comm, expect)
        gather(comm, expect, (rank + 1,), torch.float32)


@rule
def other_slots_are_no_place_for_input(comm: Communicator, expect: Expect) -> None:
    """In place means this rank's own slot; another's would be overwritten while it is read."""
    whole = Buffer((comm.size, _COUNT), torch.float32, comm.device)
    for slot in range(comm.size):
        if slot != comm.rank:
            with expect.refusal(CommArgumentError, f"slot {slot}", "input: got", "slot"):
                comm.all_gather_into(whole.tensor, whole.tensor[slot])
            with expect.refusal(CommArgumentError, f"slot {slot}", "input: got", "slot"):
                comm.reduce_scatter_into(whole.tensor[slot], whole.tensor)
    expect.holds(whole, poison(whole.nbytes), "buffer of refused calls")


@rule
def a_refused_call_leaves_its_group_usable(comm: Communicator, expect: Expect) -> None:
    """Checked at once inside a group: what was queued before and after goes out."""
    slots = torch.full((comm.size,), -1, device=comm.device)
    with comm.group():
        comm.all_gather_into(slots, torch.tensor(comm.rank, device=comm.device))
        with expect.refusal(CommArgumentError, "in a group", "root: got", "need"):
            comm.broadcast(slots, comm.size)
    expect.equal(slots.tolist(), list(range(comm.size)), "slots")


CHECKS: tuple[Check, ...] = (
    illegal_calls_are_refused,
    a_refusal_on_one_rank_is_its_own_affair,
    other_slots_are_no_place_for_input,
    a_refused_call_leaves_its_group_usable,
)
