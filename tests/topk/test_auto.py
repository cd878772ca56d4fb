"""Strategy "auto": the fastest by the model, the same on every rank, in scratch that covers all."""

import re
from dataclasses import replace

import numpy as np
import pytest

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommMismatch
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.kernels.torch_primitives import TorchPrimitives
from dcp_comm.sharding import Shard
from dcp_comm.testing import run_ranks
from dcp_comm.topk import choice
from dcp_comm.topk.choice import Choice
from dcp_comm.topk.cost import H200, LINKS, Link, Scheme, schemes
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
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
        given, over = options or MergeOptions(), link if isinstance(link, Link) else LINKS[link]
        return Choice(problem, max_rows, "auto", chunk_rows, given, over)

    return run_ranks(fn, size)[0]


def modelled(scheme: Scheme, rows: int, link: str) -> float:
    """Microseconds of exchange, sorting and selection."""
    local = scheme.local_us(rows, chunk_rows=scheme.chunk_rows)
    return scheme.exchange_us(rows, LINKS[link], scheme.chunk_rows) + local


@pytest.mark.parametrize("link", list(LINKS))
@pytest.mark.parametrize("output", list(NAMES))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_the_fastest_merges(size: int, output: str, link: str) -> None:
    """At every number of rows, but for a little where a strategy's next chunk begins."""
    found = chosen(size, output, link)
    every = {
        each.name: each
        for each in schemes(K, size, splitter_shape(K, size), output)
        if each.name in NAMES[output]
    }
    for rows in [*range(1, 700, 3), *range(700, 8193, 97), 8192]:
        best = min(modelled(each, rows, link) for each in every.values())
        taken = every[found.plan(rows).scheme.name]
        assert modelled(taken, rows, link) <= 1.15 * best


@pytest.mark.parametrize(
    ("size", "link", "crossover"),
    [(2, "nvlink", 550), (4, "nvlink", 190), (8, "nvlink", 85), (2, "pcie", 57), (8, "pcie", 8)],
)
def test_few_rows_are_gathered(size: int, link: str, crossover: int) -> None:
    """Up to about the crossover, sorting and selection included, where the splitter takes over."""
    few, many = chosen(size, "local", link).plans[:2]
    assert few.scheme.name == "gather"
    assert few.most_rows == pytest.approx(crossover, rel=0.1)
    assert many.scheme.name == "splitter"


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
    names = [plan.scheme.name for plan in chosen(8, "local").plans]
    assert names == ["gather", "splitter", "splitter/owner"]
    for transport, last in (("all", "splitter"), ("owner", "splitter/owner")):
        plans = chosen(8, "local", options=MergeOptions(transport)).plans
        assert plans[-1].scheme.name == last
        assert {"splitter", "splitter/owner"} & {plan.scheme.name for plan in plans} == {last}
    wide = chosen(8, "local", options=MergeOptions(block=512))
    assert wide.plans[0].most_rows > chosen(8, "local").plans[0].most_rows
    assert {plan.chunk_rows for plan in chosen(8, "local", chunk_rows=64).plans} == {64}


def test_it_says_why() -> None:
    """A line a plan, with the numbers that decided."""

    def fn(comm: Communicator) -> tuple[str, str]:
        auto = TopKMerge(comm, K, 8192, output="local", link="nvlink")
        return auto.explain(), TopKMerge(comm, K, 8192, strategy="owner").explain()

    auto, owner = run_ranks(fn, 4)[0]
    few, many, arithmetic = auto.splitlines()
    assert arithmetic.startswith("arithmetic by torch (")
    assert few.startswith("gather (chosen by the model of costs) up to 193 rows: 1 exchanges")
    assert many.startswith("splitter (chosen by the model of costs) up to 8192 rows: 2 exchanges")
    assert "3840 bytes received a row, 44056576 bytes of scratch; the model over nvlink" in many
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
        merge = TopKMerge(comm, k, max_rows, output=output, link=SLOW)
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


@pytest.mark.parametrize("table", ["LINKS", "H200"])
def test_the_table_of_costs_is_agreed_on(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest changes with any figure in it."""
    found = chosen(2, "global")
    before = found.agreed
    changed = {
        "LINKS": {**LINKS, "pcie": replace(LINKS["pcie"], latency_us=1.0)},
        "H200": replace(H200, sort_us=1.0),
    }
    monkeypatch.setattr(choice, table, changed[table])
    assert {name for name, value in found.agreed.items() if value != before[name]} == {"costs"}


def test_what_is_agreed_on_fits_one_record() -> None:
    """With every option set and every plan in use."""

    def fn(comm: Communicator) -> None:
        options = MergeOptions("owner", 1000, 1000)
        link = Link("a link with a long name", 1.234567890123e-05, 1.234567890123e15)
        for each in (options, None):
            TopKMerge(comm, 2**20, 2**20, 10**6, output="slots", options=each, link=link).prepare()

    run_ranks(fn, 2)
