"""One rank of `tests.compiled.test_processes`: compiled regions beside the same calls, eager."""

import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

import dcp_comm as dc
from dcp_comm import compiled
from dcp_comm.communicator import Communicator
from tests.compiled.regions import (
    Region,
    a_merge,
    collectives,
    merge_inputs,
    merging,
    plain_collectives,
    plain_merging,
)
from tests.processes import report


def same(found: Iterable[Tensor], wanted: Iterable[Tensor]) -> bool:
    """Bit for bit."""
    return all(torch.equal(got, want) for got, want in zip(found, wanted, strict=True))


def check(comm: Communicator, compile_: Callable[[Region], Region]) -> dict[str, object]:
    """Compile, run twice on other data, and compare."""
    region = compile_(collectives(comm, compiled.register(comm)))
    name, merge = a_merge(comm)
    merged, agree, bytes_sent, firsts = compile_(merging(name)), [], [], []
    for n in range(2):
        x = torch.arange(6.0).view(2, 3) + 10 * comm.rank + n
        comm.ledger.reset()
        found = region(x)
        bytes_sent.append(comm.ledger.bytes_sent)
        agree.append(same(found, plain_collectives(comm, x)))
        inputs = merge_inputs(comm.rank + 10 * n)
        found = merged(*inputs)
        firsts.append(found[0].tolist())
        kept = inputs[-1].ids.clone()
        agree.append(same(found, plain_merging(merge, *inputs)))
        agree.append(torch.equal(kept, inputs[-1].ids))
    return {"agree": agree, "bytes_sent": bytes_sent, "first": firsts}


def main() -> None:
    """By the compiler that the launch names."""
    compiler = os.environ["COMPILER"]
    with dc.init("torch", "cpu", timeout=80) as comm:
        told = check(comm, lambda region: torch.compile(region, fullgraph=True, backend=compiler))
        report(topic="compiled", name=compiled.register(comm), **told)


if __name__ == "__main__":
    main()
