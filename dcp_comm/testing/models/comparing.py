"""Their eager forward against the sharded one: every row of logits, every token decoded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dcp_comm.testing.models.sharded import ShardedModel, index_inputs
from dcp_comm.testing.models.small import Model, new_cache

GAP = 1e-6
"""Where the K-th score is not this much above the next, rounding may choose either token."""

TOLERANCE = 1e-4
"""Of logits, relative to the largest of their row: float32 through a few layers."""

COMPARED = 0.95
"""Share of the rows that must be compared, so that a comparison means something."""


@dataclass(frozen=True)
class Truth:
    """What a model says by itself: rows of logits, the tokens it decodes, and how sure they are.

    Attributes:
        prompt: int64 (requests, n).
        tokens: int64 (requests, steps), decoded greedily.
        logits: float32 (requests, n + steps - 1, vocabulary), of the prompt and then of each token.
        narrow: bool (requests, n + steps - 1): in some layer the K-th score was no more than `GAP`
            above the next, relative to the largest of its row.
    """

    prompt: Tensor
    tokens: Tensor
    logits: Tensor
    narrow: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, model: Model, prompt: Tensor, steps: int) -> "Truth":
        """Decode with transformers' own forward and cache; the model's device is the prompt's."""
        cache = new_cache(model)

        def forward(tokens: Tensor) -> Tensor:
            logits: Tensor = model(tokens, cache=cache, use_cache=True).logits
            return logits

        with _gaps(model) as gaps:
            logits, tokens = greedy(forward, prompt, steps)
        narrow = [torch.cat([gap <= GAP for gap in each], 1) for each in gaps]
        return cls(prompt, tokens, logits, torch.stack(narrow).any(0))


@dataclass(frozen=True)
class Comparison:
    """How a sharded model did.

    Attributes:
        rows: Rows of logits.
        compared: Those whose selection is beyond rounding.
        wrong: Rows of these whose logits differ by more than `TOLERANCE`.
        worst: The largest difference in a compared row, relative to its largest logit.
        decoded: Tokens that were decoded.
        other: Those that are not the model's own.
    """

    rows: int
    compared: int
    wrong: int
    worst: float
    decoded: int
    other: int

    @property
    def failures(self) -> list[str]:
        """What is not as it must be; empty where the two are equal."""
        failures = []
        if self.wrong:
            failures.append(f"{self.wrong} of {self.compared} rows of logits differ")
        if self.other:
            failures.append(f"{self.other} of {self.decoded} decoded tokens differ")
        if self.compared < COMPARED * self.rows:
            failures.append(f"only {self.compared} of {self.rows} rows could be compared")
        return failures


def compare(sharded: ShardedModel, truth: Truth) -> Comparison:
    """Decode with the sharded model, which has not run yet, and compare; collective."""
    logits, tokens = greedy(sharded, truth.prompt, truth.tokens.shape[1])
    largest = truth.logits.abs().amax(2)
    difference = (logits - truth.logits).abs().amax(2) / largest
    difference = difference.nan_to_num(torch.inf)[~truth.narrow]
    return Comparison(
        rows=truth.narrow.numel(),
        compared=difference.numel(),
        wrong=int((difference > TOLERANCE).sum()),
        worst=float(difference.amax()) if difference.numel() else 0.0,
        decoded=tokens.numel(),
        other=int((tokens != truth.tokens).sum()),
    )


def greedy(
    forward: Callable[[Tensor], Tensor], prompt: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """Return the logits of all tokens that went in, and the ``steps`` tokens that came out."""
    logits, tokens = [forward(prompt)], list[Tensor]()
    for _ in range(steps):
        tokens.append(logits[-1][:, -1:].argmax(2))
        if len(tokens) < steps:
            logits.append(forward(tokens[-1]))
    return torch.cat(logits, 1), torch.cat(tokens, 1)


@contextmanager
def _gaps(model: Model) -> Iterator[list[list[Tensor]]]:
    """Collect the gap at the K-th score of every row, step by step, for each layer's indexer."""
    layers = [layer.self_attn.indexer for layer in model.model.layers]
    recorders = [_Gaps(indexer) for indexer in layers if indexer is not None]
    handles = [each.indexer.register_forward_hook(each) for each in recorders]
    try:
        yield [each.gaps for each in recorders]
    finally:
        for handle in handles:
            handle.remove()


class _Gaps:
    """Scores in float64 beside an indexer that runs.

    Attributes:
        indexer: transformers' module.
        gaps: float64 (requests, n) of each step, relative; inf where every token wins.
    """

    def __init__(self, indexer: Any) -> None:
        self.indexer, self.gaps = indexer, list[Tensor]()
        self._keys: Tensor | None = None

    def __call__(self, _: object, inputs: tuple[Any, ...], selected: Tensor) -> None:
        hidden_states, residual, angles, *_rest = inputs
        requests, count = hidden_states.shape[:2]
        q, weights, keys = (
            each.double().unflatten(0, (requests, count))
            for each in index_inputs(self.indexer, hidden_states, residual, angles)
        )
        self._keys = keys if self._keys is None else torch.cat([self._keys, keys], 1)
        products = torch.einsum("bshd,btd->bsht", q, self._keys).relu_()
        scores = torch.einsum("bsht,bsh->bst", products, weights)
        self.gaps.append(gaps(scores, self.indexer.index_topk))


def gaps(scores: Tensor, k: int) -> Tensor:
    """Return how far the K-th score of a row is above the next, relative to the row's largest.

    Args:
        scores: (requests, n, t), of the last n of t tokens, which see themselves and all before.
        k: Tokens that win.

    Returns:
        (requests, n); inf where no more than k are seen.
    """
    count, tokens = scores.shape[1:]
    if tokens <= k:
        return scores.new_full(scores.shape[:2], torch.inf)
    seen = torch.ones(count, tokens, dtype=torch.bool, device=scores.device)
    unseen = ~seen.tril_(tokens - count)
    best = scores.masked_fill(unseen, -torch.inf).topk(k + 1).values
    largest = scores.masked_fill(unseen, 0).abs().amax(2)
    return (best[..., k - 1] - best[..., k]) / largest
