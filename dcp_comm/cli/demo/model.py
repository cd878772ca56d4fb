"""The demo of whole models: transformers' own forward against the same with sharded attention."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from textwrap import indent

import torch

from dcp_comm.cli.demo.model_mistakes import MODEL_MISTAKES
from dcp_comm.cli.demo.outcome import Page
from dcp_comm.cli.demo.where import travelled
from dcp_comm.cli.table import table
from dcp_comm.communicator import Communicator
from dcp_comm.testing.models import MODELS, Comparison, ShardedModel, Truth, compare, small_model

PROMPT, STEPS, SEED = 96, 64, 0
"""Tokens of the prompt, tokens decoded, and where models and prompt are drawn from."""


@dataclass(frozen=True)
class ModelOptions:
    """What the command line asks for.

    Attributes:
        interleave: Consecutive tokens dealt to a rank at a time.
        broken: The mistake to put into our way; None for none.
    """

    interleave: int = 1
    broken: str | None = None


@dataclass(frozen=True)
class Compared:
    """One model and how its sharded forward did.

    Attributes:
        name: The model.
        layers: How many it has.
        sharing: How many of them share a selection.
        k: Tokens that a row selects.
        heads: Query heads.
        bytes_a_token: What a token moved to this rank, all layers together.
        comparison: Logits and tokens.
    """

    name: str
    layers: int
    sharing: int
    k: int
    heads: int
    bytes_a_token: int
    comparison: Comparison


@dataclass(frozen=True)
class ModelOutcome:
    """Everything, from the point of view of rank 0."""

    options: ModelOptions
    ranks: int
    backend: str
    models: tuple[Compared, ...]

    @property
    def failures(self) -> list[str]:
        """What is not as it must be; empty where all is well."""
        failures = [
            f"{each.name}: {failure}"
            for each in self.models
            for failure in each.comparison.failures
        ]
        if self.options.broken and not failures:
            failures.append("the mistake is in, but nothing shows it")
        return failures


def perform(
    comm: Communicator, options: ModelOptions, progress: Callable[[str], None]
) -> ModelOutcome:
    """Build each model, let it speak for itself, then sharded, and compare; collective."""
    models = tuple(_compared(comm, name, options, progress) for name in MODELS)
    return ModelOutcome(options, comm.size, comm.backend, models)


def _compared(
    comm: Communicator, name: str, options: ModelOptions, progress: Callable[[str], None]
) -> Compared:
    progress(f"{name}: transformers' own forward, {PROMPT} tokens and {STEPS} decoded")
    model = small_model(name, SEED).to(comm.device)
    config, generator = model.config, torch.Generator().manual_seed(SEED)
    prompt = torch.randint(config.vocab_size, (1, PROMPT), generator=generator).to(comm.device)
    truth = Truth.of(model, prompt, STEPS)
    progress(f"{name}: the same, every layer's attention sharded over {comm.size} ranks")
    sharded = ShardedModel(
        comm,
        model,
        PROMPT + STEPS,
        interleave=options.interleave,
        page_size=4 * options.interleave,
        attention=MODEL_MISTAKES[options.broken] if options.broken else None,
    )
    comm.ledger.reset()
    comparison = compare(sharded, truth)
    return Compared(
        name=name,
        layers=config.num_hidden_layers,
        sharing=list(getattr(config, "indexer_types", [])).count("shared"),
        k=config.index_topk,
        heads=config.num_attention_heads,
        bytes_a_token=travelled(comm).received // comparison.rows,
        comparison=comparison,
    )


def page(outcome: ModelOutcome) -> Page:
    """Return all that is told of an outcome."""
    fields = {"ok": not outcome.failures, "failures": outcome.failures, **asdict(outcome)}
    return Page("\n".join(_text(outcome)) + "\n", fields, _verdict(outcome), outcome.failures)


def _verdict(outcome: ModelOutcome) -> str:
    if not outcome.failures:
        rows = sum(each.comparison.compared for each in outcome.models)
        decoded = sum(each.comparison.decoded for each in outcome.models)
        return f"PASS: {rows} rows of logits and {decoded} decoded tokens equal the models' own"
    broken = outcome.options.broken
    cause = f" (--break {broken} put a mistake into our way)" if broken else ""
    return f"FAIL: {'; '.join(outcome.failures)}{cause}"


def _text(outcome: ModelOutcome) -> Iterable[str]:
    yield f"DeepSeek-V3.2 and GLM as HF transformers has them, sharded over {outcome.ranks} ranks"
    yield ""
    yield "  models  small, sizes and weights drawn at random; float32"
    yield f"  ranks   {outcome.ranks} over backend {outcome.backend};"
    yield f"          tokens dealt {outcome.options.interleave} at a time, kept in pages"
    yield f"  rows    {PROMPT} of a prompt, then {STEPS} tokens decoded greedily"
    yield ""
    header = ("model", "layers", "sharing", "heads", "K", "rows", "compared", "wrong", "worst")
    rows = [_row(each) for each in outcome.models]
    yield indent(table((*header, "decoded", "other", "bytes a token"), rows), "  ")
    yield ""
    yield "  sharing   layers that attend to the selection of the layer before them"
    yield "  compared  rows of logits whose K-th index score is beyond rounding in every layer"
    yield "  worst     largest difference of a logit, relative to the largest of its row"
    yield "  other     decoded tokens that are not the model's own"


def _row(each: Compared) -> tuple[str, ...]:
    found = each.comparison
    sizes = each.layers, each.sharing, each.heads, each.k
    counts = found.rows, found.compared, found.wrong
    tokens = found.decoded, found.other, each.bytes_a_token
    worst = f"{found.worst:.1e}"
    return (each.name, *map(str, (*sizes, *counts)), worst, *(f"{count:,}" for count in tokens))
