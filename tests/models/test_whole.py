"""Whole models: transformers' own forward equals the same with sharded attention."""

from dataclasses import asdict, replace

import pytest
import torch

from dcp_comm.cli.demo.model_mistakes import MODEL_MISTAKES
from dcp_comm.testing import run_ranks
from dcp_comm.testing.models import Comparison, small_model
from dcp_comm.testing.models.comparing import gaps
from tests.forks import preload, reports
from tests.models.cases import Case, answer, check

pytest.importorskip("transformers")
preload("tests.models.gloo_ranks")
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("processes")]

GLM = Case("glm-5", interleave=2)
DEEPSEEK = Case("deepseek-v3.2", requests=2, steps=12, way="reduce_scatter")


def check_on(case: Case, size: int) -> None:
    """Every rank's answer."""
    with torch.no_grad():
        for found in run_ranks(answer, size, case, case.truth, timeout=200):
            check(found)


def test_glm_over_two_ranks() -> None:
    """With layers that share a selection; 64 tokens decoded."""
    kinds = GLM.model.config.indexer_types
    assert {"full", "shared"} == set(kinds)
    check_on(GLM, 2)


def test_deepseek_over_four_ranks() -> None:
    """Two requests side by side, and the other way of the LSE merge."""
    check_on(DEEPSEEK, 4)


def check_gloo(module: str) -> None:
    """Four processes as one group, and as two groups of two."""
    told = reports(module, 4, seconds=250)
    assert len(told) == 2
    for each in told.values():
        assert len(each) == 4
        for report in each:
            check(Comparison(**report["found"]))


def test_over_gloo() -> None:
    check_gloo("tests.models.gloo_ranks")


@pytest.mark.slow
def test_over_gloo_to_the_end() -> None:
    check_gloo("tests.models.gloo_ranks_to_the_end")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["deepseek-v3.2", "glm-5"])
@pytest.mark.parametrize("size", [2, 4])
def test_many_models(name: str, size: int) -> None:
    for seed in range(1, 6):
        check_on(Case(name, seed, 1 + seed % 2, 60 + 20 * seed, interleave=1 + seed % 3), size)


@pytest.mark.parametrize("mistake", MODEL_MISTAKES)
def test_every_mistake_shows(mistake: str) -> None:
    """So the comparison bites: a few tokens are enough."""
    case = replace(GLM, interleave=1, prompt=30, steps=1)
    with torch.no_grad():
        for found in run_ranks(answer, 2, case, case.truth, MODEL_MISTAKES[mistake]):
            assert found.wrong > 0, asdict(found)
            assert found.failures


def test_models_are_drawn_alike_and_differ_by_seed() -> None:
    one, same, other = (small_model("glm-5", seed) for seed in (3, 3, 4))
    assert one.config.to_dict() == same.config.to_dict()
    assert one.config.index_n_heads >= 16
    weights = dict(same.named_parameters())
    assert all(torch.equal(each, weights[name]) for name, each in one.named_parameters())
    assert not torch.equal(one.lm_head.weight.flatten()[:9], other.lm_head.weight.flatten()[:9])


def test_gaps_are_relative_to_the_largest_score() -> None:
    """Unseen tokens do not count; without more than K there is no choice."""
    scores = torch.tensor([[[8.0, 2.0, 4.0, 99.0], [3.0, -10.0, 5.0, 4.0]]]).double()
    assert gaps(scores, 2).tolist() == [[(4 - 2) / 8, (4 - 3) / 10]]
    assert gaps(scores, 4).tolist() == [[torch.inf, torch.inf]]


def test_too_few_rows_are_a_failure() -> None:
    fine = Comparison(rows=100, compared=95, wrong=0, worst=0.0, decoded=5, other=0)
    assert fine.failures == []
    assert replace(fine, compared=94).failures == ["only 94 of 100 rows could be compared"]
    assert len(replace(fine, wrong=1, other=2).failures) == 2
