"""``dcp-comm demo --model``: what it reports, how it fails, what it refuses."""

import importlib.util
import json
import subprocess

import pytest
import torch

from dcp_comm import cli
from dcp_comm.cli.demo import model
from dcp_comm.cli.demo.mistakes import MISTAKES
from dcp_comm.cli.demo.model import ModelOptions, ModelOutcome
from dcp_comm.cli.demo.model_mistakes import MODEL_MISTAKES
from dcp_comm.testing import run_ranks
from dcp_comm.testing.models import small
from tests.cli.test_demo_command import NOISE, command, environment

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("processes")]
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="needs transformers"
)


def performed(monkeypatch: pytest.MonkeyPatch, broken: str | None) -> ModelOutcome:
    """Rank 0's outcome of a short run."""
    monkeypatch.setattr(model, "PROMPT", 30)
    monkeypatch.setattr(model, "STEPS", 3)
    options, said = ModelOptions(interleave=2, broken=broken), list[str]()
    with torch.no_grad():
        outcomes = run_ranks(model.perform, 2, options, said.append)
    assert len(said) == 2 * 2 * len(outcomes[0].models)
    assert [outcome.failures for outcome in outcomes] == [outcomes[0].failures] * 2
    return outcomes[0]


@needs_transformers
def test_a_page_tells_of_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    page = model.page(performed(monkeypatch, None))
    assert page.failures == []
    assert page.verdict == "PASS: 64 rows of logits and 6 decoded tokens equal the models' own"
    deepseek, glm = (line.split() for line in page.text.splitlines() if "e-0" in line)
    assert (deepseek[0], deepseek[2], glm[0], glm[2]) == ("deepseek-v3.2", "0", "glm-5", "2")
    fields = json.loads(json.dumps(page.fields))
    assert fields["ok"] is True
    assert [each["comparison"]["compared"] for each in fields["models"]] == [32, 32]


@needs_transformers
def test_a_mistake_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that shows in GLM alone."""
    page = model.page(performed(monkeypatch, "sharing"))
    assert page.failures
    assert all(failure.startswith("glm-5: ") for failure in page.failures)
    assert page.verdict.endswith("(--break sharing put a mistake into our way)")


def test_a_mistake_that_does_not_show_is_a_failure() -> None:
    outcome = ModelOutcome(ModelOptions(broken="union"), 2, "fake", ())
    assert model.page(outcome).verdict.startswith("FAIL: the mistake is in, but nothing shows it")


@pytest.mark.slow
@needs_transformers
@pytest.mark.parametrize("mistake", [None, *MODEL_MISTAKES])
def test_as_a_command(mistake: str | None) -> None:
    words = ["demo", "--model", "--json", *(["--break", mistake] if mistake else [])]
    ended = subprocess.run(
        command(words), env=environment(), capture_output=True, text=True, check=False, timeout=250
    )
    assert ended.returncode == (1 if mistake else 0), ended.stderr
    assert json.loads(ended.stdout)["ok"] is (mistake is None)
    assert ended.stderr.splitlines()[-1].startswith("FAIL: " if mistake else "PASS: ")
    assert not any(noise in ended.stderr for noise in NOISE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model", "--k", "5"], "--k: not with --model"),
        (["--model", "--needle-depth", "0"], "--needle-depth: not with --model"),
        (["--model", "--ranks", "3"], "--ranks: 3 do not divide"),
        (["--model", "--break", "float-ids"], "--break: float-ids is no mistake of --model"),
        (["--break", "lse-averaged"], "--break: lse-averaged is a mistake of --model"),
    ],
)
def test_what_does_not_go_together_is_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *words]) == 2
    assert told in capsys.readouterr().err


def test_without_transformers_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, before any rank starts."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setattr(small, "find_spec", lambda name: None)
    monkeypatch.setattr("dcp_comm.cli.demo.relaunch", lambda *_: pytest.fail("ranks were started"))
    assert cli.main(["demo", "--model"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_union_is_a_mistake_of_both() -> None:
    assert set(MISTAKES) & set(MODEL_MISTAKES) == {"union"}
