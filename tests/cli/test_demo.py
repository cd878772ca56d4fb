"""The demo's acts on rank threads: ours is exact, every mistake bites, memory is as reserved."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from dcp_comm.cli.demo import report
from dcp_comm.cli.demo.acts import perform
from dcp_comm.cli.demo.inputs import INPUTS
from dcp_comm.cli.demo.mistakes import MISTAKES
from dcp_comm.cli.demo.outcome import Options, Outcome
from dcp_comm.cli.table import as_json
from dcp_comm.kernels.primitives import Emission
from dcp_comm.testing import run_ranks
from dcp_comm.topk.splitter import Splitter
from tests.cli.demo_text import write_text

RANKS, ROWS, K = 3, 60, 64


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    path = tmp_path_factory.mktemp("demo") / "text"
    return Options(k=K, rows=ROWS, text=write_text(path, words=3000))


@pytest.fixture(scope="module")
def outcome(options: Options) -> Outcome:
    return on_ranks(options, RANKS)[0]


def on_ranks(options: Options, size: int) -> list[Outcome]:
    """The outcome on every rank, told without progress."""
    return run_ranks(perform, size, options, lambda _: None)


def test_ours_is_exact_on_every_input(outcome: Outcome) -> None:
    assert set(outcome.exactness.ours) == {given.name for given in INPUTS}
    assert {verdict.rows for verdict in outcome.exactness.ours.values()} == {0}
    assert outcome.failures == []
    assert outcome.rows_checked == 4 * (ROWS + 1)


@pytest.mark.parametrize(
    ("ranks", "interleave", "depth"),
    [(2, 1, 0.0), (2, 2**20, 1.0), (4, 16, 0.1), (5, 3, 0.9), (8, 64, 0.5)],
)
def test_any_deal_is_exact(options: Options, ranks: int, interleave: int, depth: float) -> None:
    changed = replace(options, interleave=interleave, needle_depth=depth)
    outcomes = on_ranks(changed, ranks)
    assert [each.failures for each in outcomes] == [[]] * ranks


def test_ranks_agree_on_the_outcome(options: Options) -> None:
    first, *others = on_ranks(options, RANKS)
    for other in others:
        same = (other.memory, other.exactness, other.where.shares, other.found)
        assert same == (first.memory, first.exactness, first.where.shares, first.found)


def test_every_mistake_is_shown(outcome: Outcome) -> None:
    shown = {each.name: each for each in outcome.exactness.comparisons}
    assert set(shown) == set(MISTAKES)
    for name in set(MISTAKES) - {"composite"}:  # close scores far apart: more text than this
        assert shown[name].mistake.rows > 0, name
        assert shown[name].mistake.tokens >= shown[name].mistake.rows, name


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_our_way_fails_the_demo(options: Options, name: str) -> None:
    broken = on_ranks(replace(options, broken=name), RANKS)
    assert all(each.failures for each in broken)
    assert report.last_words(broken[0]).startswith("FAIL: ")
    assert f"--break {name} put a mistake into our way" in report.last_words(broken[0])


def test_a_mistake_without_effect_is_no_success(options: Options) -> None:
    """With all tokens on one rank, a union is exact."""
    broken = on_ranks(replace(options, broken="union", interleave=2**20), 2)[0]
    assert broken.failures == [
        "the mistake is in, but no row shows it: take more rows or more text"
    ]


@pytest.mark.parametrize("rows", [16, 1200])
def test_memory_is_what_the_formulas_say(options: Options, rows: int, tmp_path: Path) -> None:
    k, size, text = 8, 2, write_text(tmp_path / "text", words=5000)
    outcome = on_ranks(replace(options, k=k, rows=rows, text=text), size)[0]
    memory, all_rows = outcome.memory, rows + 1
    chunk = min(all_rows, 1024)
    assert outcome.run.chunk_rows == chunk
    assert 0 <= memory.reserved - size * 8 * chunk * k < 256
    assert memory.used == memory.reserved
    assert memory.published == (1 + 2 * size) * 8 * all_rows * k
    assert memory.failure.startswith("fails at its gather")
    assert memory.same


def test_bytes_moved_are_the_gathers(outcome: Outcome) -> None:
    moved = outcome.where.travelled
    assert moved.received == moved.sent == (RANKS - 1) * 8 * K * (ROWS + 1)
    assert moved.calls == 1


def test_shares_add_up(options: Options, outcome: Outcome) -> None:
    shares = outcome.where.shares
    assert len(shares) == RANKS
    assert sum(sum(share.question) for share in shares) == K
    assert sum(share.total for share in shares) <= K * (ROWS + 1)
    assert all(0 < share.least <= share.most < K for share in shares)


def test_the_question_finds_the_needle(options: Options) -> None:
    for depth in (0.0, 0.1, 0.5, 0.9, 1.0):
        outcome = on_ranks(replace(options, needle_depth=depth), 2)[0]
        start = outcome.text.at
        assert start <= outcome.found.position < start + outcome.text.needle
        assert outcome.exactness.comparisons[0].needle >= 6


def test_the_page_says_what_was_found(outcome: Outcome) -> None:
    page = report.as_text(outcome)
    for each in outcome.exactness.comparisons:
        line = next(line for line in page.splitlines() if each.title in line)
        assert line.split()[-1] == "0"
        assert f"{each.mistake.rows:,}" in line
    assert f"{outcome.memory.published:,}" in page
    assert max(map(len, page.splitlines())) <= 110
    assert report.last_words(outcome).startswith("PASS: 0 of 244 rows differ")


def test_the_fields_are_json(outcome: Outcome) -> None:
    fields = json.loads(as_json(report.as_fields(outcome)))
    assert fields["ok"] is True
    assert fields["options"]["k"] == K
    assert [each["ours"]["rows"] for each in fields["exactness"]["comparisons"]] == [0] * 6


def test_every_strategy_selects_the_same_and_moves_less_than_gather(outcome: Outcome) -> None:
    gathered, *others = outcome.strategies
    assert {each.wrong for each in outcome.strategies} == {0}
    assert gathered.received == 2 * (RANKS - 1) * 4 * K * (ROWS + 1)
    assert all(0 < each.received < gathered.received for each in others)


def test_a_strategy_that_selects_otherwise_is_a_failure(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Splitter.merge

    def lose_the_best(self: Splitter, scratch: Sequence[Tensor], to: Emission) -> None:
        honest(self, scratch, to)
        to.ids[:, 0] = -1

    monkeypatch.setattr(Splitter, "merge", lose_the_best)
    failures = on_ranks(options, RANKS)[0].failures
    assert [each.partition(":")[0] for each in failures] == [
        "rows that differ by strategy splitter, all, output local",
        "rows that differ by strategy splitter, owner, output local",
    ]


def test_progress_is_told_step_by_step(options: Options, tmp_path: Path) -> None:
    said: list[str] = []
    short = replace(options, k=8, rows=16, text=write_text(tmp_path / "short", words=100))
    run_ranks(perform, 2, short, said.append)
    assert len(said) == 2 * (6 + len(INPUTS))
