"""The custom ops: what the compiler is told of them is true, graphs hold them, names end."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor import config as inductor
from torch.library import opcheck

import dcp_comm as dc
from dcp_comm import compiled, names
from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommClosed
from dcp_comm.testing import run_ranks
from tests.compiled.regions import (
    ROWS,
    K,
    a_merge,
    collectives,
    merge_inputs,
    merging,
    plain_collectives,
    plain_merging,
)

OPS = torch.ops.dcp_comm


def arguments(comm: Communicator, op: str) -> tuple[object, ...]:
    """A legal call of one rank."""
    group, x = compiled.register(comm), torch.rand(2, 3)
    name, _ = a_merge(comm)
    logits, ids, out = merge_inputs(0)
    result = out.ids, out.counts, out.certified
    lengths, none = torch.full((ROWS,), 9), (None, None)
    calls: dict[str, tuple[object, ...]] = {
        "all_gather_into": (torch.zeros(1, 2, 3), x, group),
        "all_to_all_into": (torch.zeros(2, 3), x, group),
        "reduce_scatter_into": (torch.zeros(2, 3), x, "sum", group),
        "all_reduce": (x, "sum", group),
        "broadcast": (x, 0, group),
        "topk_merge": (logits[:, :K].clone(), ids, None, *result, *none, name),
        "topk_merge_logits": (logits, ids, None, lengths, *result, *none, name),
    }
    return calls[op]


@pytest.mark.parametrize("op", compiled.SCHEMAS)
def test_opcheck(op: str) -> None:
    """Schema, autograd registration, fake kernel and the compiler's own use of it."""

    def fn(comm: Communicator) -> None:
        opcheck(getattr(OPS, op), arguments(comm, op))

    run_ranks(fn, 1)


@pytest.mark.parametrize("op", ["all_gather_into", "topk_merge"])
def test_opcheck_bites(op: str) -> None:
    """An op that does not say what it writes is found out."""
    library = torch.library.Library("dcp_comm_wrong", "FRAGMENT")
    schema = f"{op}({compiled.SCHEMAS[op]}) -> ()"
    for mark in "abc":
        schema = schema.replace(f"({mark}!)", "")
    library.define(schema)
    library.impl(op, getattr(OPS, op), "CompositeExplicitAutograd")

    def fn(comm: Communicator) -> None:
        wrong = getattr(torch.ops.dcp_comm_wrong, op)
        with pytest.raises(Exception, match="mutated"):
            opcheck(wrong, arguments(comm, op), test_utils="test_schema")

    run_ranks(fn, 1)
    library._destroy()


class Graphs:
    """A compiler that runs what it gets as it stands, and keeps what was called in it."""

    def __init__(self) -> None:
        self.called: list[list[str]] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        targets = (str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        self.called.append([each for each in targets if each.startswith("dcp_comm.")])
        return graph.forward


def test_one_graph_holds_every_call() -> None:
    """In order, without a break; and the merge's result is read in the same graph."""

    def fn(comm: Communicator) -> None:
        graphs, x = Graphs(), torch.rand(2, 3)
        region = collectives(comm, compiled.register(comm))
        found = torch.compile(region, fullgraph=True, backend=graphs)(x)
        assert all(map(torch.equal, found, plain_collectives(comm, x)))
        name, merge = a_merge(comm)
        inputs = merge_inputs(0)
        found = torch.compile(merging(name), fullgraph=True, backend=graphs)(*inputs)
        assert all(map(torch.equal, found, plain_merging(merge, *inputs)))
        assert graphs.called == [
            [
                "dcp_comm.all_gather_into",
                "dcp_comm.all_to_all_into",
                "dcp_comm.reduce_scatter_into",
                "dcp_comm.all_reduce",
                "dcp_comm.broadcast",
            ],
            ["dcp_comm.topk_merge", "dcp_comm.topk_merge_logits"],
        ]

    run_ranks(fn, 1)


def test_inductor_s_code_gives_the_same_bits() -> None:
    """The ops stand in it as calls; what is computed around them is its own code."""

    def fn(comm: Communicator) -> None:
        name, merge = a_merge(comm)
        logits, ids, out = merge_inputs(0)

        def region(logits: Tensor, ids: Tensor, out: dc.MergeResult) -> Tensor:
            compiled.topk_merge_logits(logits * -2, ids, out, name)
            return out.ids * 2

        with inductor.patch(compile_threads=1):
            found = torch.compile(region, fullgraph=True)(logits, ids, out)
        want = merge((logits * -2).gather(1, ids.long()), ids).ids
        assert torch.equal(out.ids, want)
        assert torch.equal(found, want * 2)

    run_ranks(fn, 1)


def test_the_result_may_take_the_place_of_the_local_ids() -> None:
    """As an engine has it: one buffer, local ids in, global ids out."""

    def fn(comm: Communicator) -> None:
        name, merge = a_merge(comm)
        logits, ids, out = merge_inputs(3)
        want = merge(logits.gather(1, ids.long()), ids).ids
        result = dc.MergeResult(ids, out.counts, out.certified)

        def region(logits: Tensor, result: dc.MergeResult) -> Tensor:
            compiled.topk_merge_logits(logits, result.ids, result, name)
            return result.ids + 1

        found = torch.compile(region, fullgraph=True, backend="aot_eager")(logits, result)
        assert torch.equal(ids, want)
        assert torch.equal(found, want + 1)

    run_ranks(fn, 1)


def test_slots_go_through_a_graph() -> None:
    """Block table and request ids are inputs like others."""

    def fn(comm: Communicator) -> None:
        merge = dc.TopKMerge(comm, K, ROWS, output="slots", options=dc.MergeOptions(page_size=2))
        name = compiled.register_merge(merge)
        table = torch.arange(10, dtype=torch.int32).view(2, 5) + 7
        requests = torch.tensor([0, 1, 1, 0, 1])
        logits, ids, out = merge_inputs(4)
        want = merge(logits.gather(1, ids.long()), ids, block_table=table, request_ids=requests)

        def region(logits: Tensor, out: dc.MergeResult) -> Tensor:
            scores = logits.gather(1, ids.long())
            compiled.topk_merge(scores, ids, out, name, None, table, requests)
            return out.ids

        found = torch.compile(region, fullgraph=True, backend="aot_eager")(logits, out)
        assert torch.equal(found, want.ids)

    run_ranks(fn, 1)


def test_a_closed_communicator_s_names_are_dead() -> None:
    """Its merges' too; a compiled region says so, and serves whoever registers next."""
    x = torch.ones(3)

    def region(x: Tensor, group: str) -> Tensor:
        y = x * 2
        compiled.all_reduce(y, group)
        return y

    built = torch.compile(region, fullgraph=True, backend="aot_eager")

    def fn(comm: Communicator) -> tuple[str, str]:
        group, (merge, _) = compiled.register(comm), a_merge(comm)
        assert torch.equal(built(x, group), torch.full((3,), 2.0))
        return group, merge

    group, merge = run_ranks(fn, 1)[0]
    with pytest.raises(
        CommClosed, match=rf"dcp_comm::all_reduce: nothing is registered as '{group}"
    ):
        built(x, group)
    logits, ids, out = merge_inputs(0)
    with pytest.raises(
        CommClosed, match=f"dcp_comm::topk_merge: nothing is registered as '{merge}"
    ):
        compiled.topk_merge(logits[:, :K], ids, out, merge)
    assert run_ranks(fn, 1) == [(group, merge)]


def test_an_aborted_communicator_gives_its_cause() -> None:
    """It is not closed: its name still finds it."""

    def fn(comm: Communicator) -> None:
        group = compiled.register(comm)
        comm.abort()
        with pytest.raises(CommClosed, match="was aborted"):
            compiled.all_reduce(torch.ones(3), group)

    run_ranks(fn, 1)


def test_names_are_one_each_and_of_one_kind() -> None:
    """A second one gets another; a merge is no group."""

    def fn(comm: Communicator) -> list[str]:
        found = [compiled.register(comm), compiled.register(comm), a_merge(comm)[0]]
        with pytest.raises(CommArgumentError, match=r"all_reduce: name: got .* NamedMerge, need"):
            compiled.all_reduce(torch.ones(3), found[-1])
        with pytest.raises(CommArgumentError, match="need the name of a NamedMerge"):
            compiled.topk_merge(*merge_inputs(0), found[0])
        return found

    assert run_ranks(fn, 1) == [["world", "world~2", "world/top-k"]]
    assert not names._named


def test_refusals_reach_the_caller() -> None:
    """Checked when the region runs, as any call."""

    def fn(comm: Communicator) -> None:
        group = compiled.register(comm)
        wrong = torch.compile(compiled.all_gather_into, fullgraph=True, backend="aot_eager")
        with pytest.raises(CommArgumentError, match="all_gather_into: output: got"):
            wrong(torch.empty(7), torch.ones(3), group)

    run_ranks(fn, 1)


def test_nobody_pays_for_it_who_does_not_import_it() -> None:
    """Neither the package nor its names."""
    code = (
        "import sys, dcp_comm, dcp_comm.indexer; "
        "found = {'dcp_comm.compiled', 'torch._dynamo', 'torch._inductor'} & set(sys.modules); "
        "sys.exit(repr(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
