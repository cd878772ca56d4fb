"""Strategy "auto": the fastest by the model, the same on every rank, in scratch that covers all."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, CommMismatch
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.kernels.torch_primitives import TorchPrimitives
from dcp_comm.sharding import Shard
from dcp_comm.testing import run_ranks
from dcp_comm.topk import measured
from dcp_comm.topk.choice import Choice
from dcp_comm.topk.cost import Scheme, schemes
from dcp_comm.topk.measured import CPU, GPU, NAMED, NO_P2P, P2P, link_between
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.rates import LINKS, Link
from dcp_comm.topk.strategy import Problem
from tests.topk.cases import Case, Outcome, check_outcomes, columns_of, feed, poisoned
from tests.topk.scores import drawn, drawn_lengths

K = 2048
SLOW = Link("slow", 30.0, 100.0)
NAMES = {
    "global": {"gather", "owner"},
    "local": {"gather", "owner", "splitter", "splitter/owner"},
}
NAMES["slots"] = NAMES["local"]


def chosen(
    size: int,
    output: str,
    link: Link | str = "nvlink",
    max_rows: int = 8192,
    k: int = K,
    chunk_rows: int | None = None,
    options: MergeOptions | None = None,
) -> Choice:
    """The plans that one rank makes by itself."""

    def fn(comm: Communicator) -> Choice:
        problem = Problem(comm, k, TorchPrimitives(), output, "score", Shard(comm.rank, size), True)
        given = replace(options or MergeOptions(), device=GPU)
        over = link if isinstance(link, Link) else NAMED[link]
        return Choice(problem, max_rows, "auto", chunk_rows, given, over)

    return run_ranks(fn, size)[0]


def modelled(scheme: Scheme, rows: int, link: str) -> float:
    """Microseconds of exchange, sorting and selection."""
    return scheme.merge_us(rows, NAMED[link], GPU, scheme.chunk_rows)


@pytest.mark.parametrize("link", list(NAMED))
@pytest.mark.parametrize("output", list(NAMES))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_the_fastest_merges(size: int, output: str, link: str) -> None:
    """At every number of rows, within a tenth, by few plans."""
    found = chosen(size, output, link)
    assert len(found.plans) <= 6
    every = {
        each.name: each
        for each in schemes(K, size, splitter_shape(K, size), output)
        if each.name in NAMES[output]
    }
    for rows in [*range(1, 700, 3), *range(700, 8193, 97), 8192]:
        best = min(modelled(each, rows, link) for each in every.values())
        taken = every[found.plan(rows).scheme.name]
        assert modelled(taken, rows, link) <= 1.1 * best


@pytest.mark.parametrize("link", list(LINKS))
def test_the_fastest_of_strategies_that_overtake_each_other(link: str) -> None:
    """With few keys a row, starts are what costs: each is ahead until its next chunk begins."""
    found = chosen(8, "local", link, 65536, k=13)
    every = {each.name: each for each in schemes(13, 8, splitter_shape(13, 8), "local")}
    chunks = (1024 * n + more for n in range(1, 64) for more in (-1, 0, 1, 300))
    for rows in [*range(1, 1024, 5), *chunks, 65536]:
        best = min(modelled(every[name], rows, link) for name in NAMES["local"])
        assert modelled(every[found.plan(rows).scheme.name], rows, link) <= 1.1 * best


@pytest.mark.parametrize(("link", "least", "most"), [(P2P[2], 32, 127), (NO_P2P[2], 1, 7)])
def test_few_rows_are_gathered(link: Link, least: int, most: int) -> None:
    """The splitter takes over between the two numbers of rows between which it was measured to."""
    few, many = chosen(2, "local", link).plans[:2]
    assert few.scheme.name == "gather"
    assert least <= few.most_rows <= most
    assert many.scheme.name == "splitter"


@pytest.mark.parametrize("size", [4, 8])
def test_slower_links_and_more_ranks_gather_fewer_rows(size: int) -> None:
    gathered = [chosen(size, "local", link).plans[0].most_rows for link in LINKS]
    assert gathered == sorted(gathered, reverse=True)
    assert gathered[0] <= chosen(size // 2, "local", "nvlink").plans[0].most_rows
    assert gathered[-1] < gathered[0]


def test_the_link_that_is_not_named() -> None:
    """Between GPUs what was measured in the next larger group, as NCCL is told to go."""
    gpu, through_host = torch.device("cuda"), {"NCCL_P2P_DISABLE": "1"}
    assert [link_between(gpu, size, {}) for size in (1, 2)] == [P2P[2]] * 2
    assert [link_between(gpu, size, {}) for size in (8, 72)] == [P2P.get(8, LINKS["nvlink"])] * 2
    assert link_between(gpu, 2, through_host) is NO_P2P[2]
    assert link_between(gpu, 72, through_host) is NO_P2P[max(NO_P2P)]
    for unset in ("0", ""):
        assert link_between(gpu, 2, {"NCCL_P2P_DISABLE": unset}) is P2P[2]
    assert link_between(torch.device("cpu"), 2, through_host) is LINKS["network"]


@pytest.mark.parametrize("output", ["global", "local"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_plan_of_some_rows_does_not_depend_on_the_most(size: int, output: str) -> None:
    """So what is reserved never shrinks when more rows are allowed."""
    largest = chosen(size, output)
    reserved = 0
    for max_rows in (1, 5, 60, 100, 193, 194, 300, 550, 1024, 1025, 2049, 6305, 6306, 8192):
        found = chosen(size, output, max_rows=max_rows)
        for rows in range(1, max_rows + 1, 1 + max_rows // 50):
            assert found.plan(rows).scheme == largest.plan(rows).scheme
        nbytes = sum(spec.nbytes for spec in found.specs)
        assert nbytes >= reserved
        assert all(sum(s.nbytes for s in plan.specs) <= nbytes for plan in found.plans)
        reserved = nbytes


def test_options_narrow_the_choice() -> None:
    """A transport excludes the other, a block moves the crossover, chunks bound every plan."""
    for transport, other in (("all", "splitter/owner"), ("owner", "splitter")):
        plans = chosen(4, "local", "pcie", options=MergeOptions(transport)).plans
        names = [plan.scheme.name for plan in chosen(4, "local", "pcie").plans]
        assert other in names
        assert other not in {plan.scheme.name for plan in plans}
    wide = chosen(2, "local", "pcie", options=MergeOptions(block=512))
    assert wide.plans[0].most_rows > chosen(2, "local", "pcie").plans[0].most_rows
    plans = chosen(8, "local", chunk_rows=64).plans
    assert all(plan.chunk_rows == min(64, plan.most_rows) for plan in plans)


def test_it_says_why() -> None:
    """A line a plan, with the numbers that decided."""

    def fn(comm: Communicator) -> tuple[str, str]:
        options = MergeOptions(device=GPU)
        auto = TopKMerge(comm, K, 8192, output="local", link="nvlink", options=options)
        return auto.explain(), TopKMerge(comm, K, 8192, strategy="owner").explain()

    auto, owner = run_ranks(fn, 2)[0]
    few, many, arithmetic = auto.splitlines()
    assert arithmetic.startswith("arithmetic by torch (")
    most = chosen(2, "local").plans[0].most_rows
    assert few.startswith(f"gather (chosen by the model of costs) up to {most} rows: 1 exchanges")
    assert many.startswith("splitter (chosen by the model of costs) up to 8192 rows: 2 exchanges")
    assert f"768 bytes received a row, {2048 * 17928} bytes of scratch" in many
    assert f"; the model over nvlink and {GPU.name} for 8192 rows: " in many
    times = dict(re.findall(r"(\S+) (\d+) us", many.split("rows:")[-1]))
    assert set(times) == NAMES["local"]
    assert min(times, key=lambda name: int(times[name])) == "splitter"
    assert owner.startswith("owner (asked for) up to 8192 rows: 2 exchanges a chunk of 1024 rows")
    assert "over network" in owner


@pytest.mark.parametrize("output", ["global", "local"])
def test_either_side_of_every_crossover_in_the_same_memory(output: str) -> None:
    """One reservation serves all plans, and their results do not tell them apart."""
    size, k, max_rows, rng = 4, 64, 60, np.random.default_rng(0)
    plans = chosen(size, output, SLOW, max_rows, k).plans
    assert len(plans) == (2 if output == "global" else 3)
    ends = [plan.most_rows for plan in plans]
    cases = []
    for rows in sorted({1, *ends, *(end + 1 for end in ends[:-1])}):
        scores, lengths = drawn("few", rows, 300, rng), drawn_lengths(rows, 300, k, rng)
        cases.append(Case(scores, lengths, size, k, output=output))

    def fn(comm: Communicator) -> list[tuple[Outcome, set[str]]]:
        options = MergeOptions(device=GPU)
        merge = TopKMerge(comm, k, max_rows, output=output, link=SLOW, options=options)
        scratch = [poisoned(spec, 0xA5) for spec in merge.specs()]
        outcomes = []
        for case in cases:
            job = merge.begin(case.rows, scratch=scratch)
            comm.ledger.reset()
            feed(job, case, columns_of(case, comm))
            result = job.finish()
            arrays = (each.numpy() for each in (result.ids, result.counts, result.certified))
            outcomes.append((Outcome(*arrays), {*comm.ledger.by_op} - {"fingerprint"}))
        return outcomes

    outcomes = run_ranks(fn, size)
    for number, case in enumerate(cases):
        check_outcomes(case, [each[number][0] for each in outcomes])
    assert outcomes[0][0][1] == {"all_gather_into"}
    assert "all_to_all_into" in outcomes[0][-1][1]


@pytest.mark.parametrize(
    ("links", "field"),
    [(("nvlink", "pcie"), "link"), ((None, Link("network", 30.0, 12_000.0)), "link")],
)
def test_ranks_that_believe_in_different_links(
    links: tuple[Link | str | None, ...], field: str
) -> None:
    """Their plans might differ; every rank learns it before the first chunk."""

    def fn(comm: Communicator) -> None:
        merge = TopKMerge(comm, K, 8, link=links[comm.rank])
        with pytest.raises(CommMismatch, match=field):
            merge.prepare()

    run_ranks(fn, 2)


@pytest.mark.parametrize("table", ["NAMED", "GPU", "CPU"])
def test_the_table_of_costs_is_agreed_on(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest changes with any figure in it."""
    found = chosen(2, "global")
    before = found.agreed
    changed = {
        "NAMED": {**NAMED, "pcie": replace(NAMED["pcie"], latency_us=1.0)},
        "GPU": replace(GPU, emit=replace(GPU.emit, start_us=1.0)),
        "CPU": replace(CPU, pack=replace(CPU.pack, keys_per_us=1.0)),
    }
    monkeypatch.setattr(measured, table, changed[table])
    assert {name for name, value in found.agreed.items() if value != before[name]} == {"costs"}


def test_ranks_that_believe_in_different_devices() -> None:
    """By any figure, whatever the name; and what is no device is refused."""

    def fn(comm: Communicator) -> None:
        own = replace(GPU, emit=replace(GPU.emit, start_us=float(comm.rank)))
        with pytest.raises(CommMismatch, match="device"):
            TopKMerge(comm, K, 8, options=MergeOptions(device=own)).prepare()

    run_ranks(fn, 2)
    with pytest.raises(CommArgumentError, match=r"device.*: got 'H200', need a Device or None"):
        MergeOptions(device="H200")  # type: ignore[arg-type]


ROCE = Link(
    "8 x H200 over 400 Gbit RoCE",
    *(45.12345678901234, 22000.123456789012),
    *(60.12345678901234, 22500.123456789012),
)


@pytest.mark.parametrize("link", [ROCE, Link("ü\n" * 2000, 1 / 3, 2e5 / 3)])
def test_what_is_agreed_on_fits_one_record(link: Link) -> None:
    """With every option set and every plan in use, whatever links and devices are called."""

    def fn(comm: Communicator) -> int:
        device = replace(GPU, name=link.name)
        for options in (MergeOptions("owner", 1000, 2**31 - 1, device), MergeOptions(device=GPU)):
            how: dict[str, Any] = {"output": "slots", "order": "position", "link": link}
            merge = TopKMerge(comm, K, 65536, 10**6, options=options, **how)
            merge.prepare()
        return len(merge._choice.plans)

    assert set(run_ranks(fn, 8)) <= {*range(7)}


def test_what_is_told_in_short_still_differs() -> None:
    """In what was cut as well."""

    def fn(comm: Communicator) -> None:
        link = Link("a long name " * 100 + str(comm.rank), 30.0, 12_000.0)
        with pytest.raises(CommMismatch, match=r"do not agree on link\n"):
            TopKMerge(comm, K, 8, link=link).prepare()

    run_ranks(fn, 2)
