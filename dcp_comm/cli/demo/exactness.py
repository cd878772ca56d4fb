"""Exactness: ours and every published mistake on the same rows, judged by the plain answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcp_comm.cli.demo.inputs import INPUTS, Input
from dcp_comm.cli.demo.mistakes import MISTAKES
from dcp_comm.cli.demo.reference import Answers
from dcp_comm.cli.demo.scoring import Logits
from dcp_comm.cli.demo.stages import Setup, Way
from dcp_comm.kernels.torch_ops import row_blocks


@dataclass(frozen=True)
class Verdict:
    """What is wrong with one way's selection on one input.

    Attributes:
        rows: Rows whose set of tokens is wrong; of ours also in order, or on any rank.
        tokens: Tokens missing or too many, a swapped one counted once.
        needle: Tokens of the needle, of those in the plain answer, that the question selects.
    """

    rows: int
    tokens: int
    needle: int


@dataclass(frozen=True)
class Comparison:
    """One mistake beside ours, on the same rows; ``needle`` as the plain answer has it."""

    name: str
    title: str
    input: str
    needle: int
    mistake: Verdict
    ours: Verdict


@dataclass(frozen=True)
class Exactness:
    """All of ours by input, and all comparisons."""

    ours: dict[str, Verdict]
    comparisons: tuple[Comparison, ...]


def compare(
    setup: Setup,
    segments: Sequence[Logits],
    answers: Answers,
    needle: range,
    way: Way,
    progress: Callable[[str], None],
) -> Exactness:
    """Run ``way``, which is ours, and every mistake on the input that it is about."""
    ours: dict[str, Verdict] = {}
    comparisons: list[Comparison] = []
    for given in INPUTS:
        progress(f"ours beside published mistakes, input {given.name!r}: {given.note}")
        logits = [given.disguise(setup, each) for each in segments]
        found = way.found(setup, logits)
        judge = _Judge(setup, given, answers, needle)
        ours[given.name] = own = judge.ours(way.merged(setup, found))
        for name, mistake in MISTAKES.items():
            if mistake.input is given:
                mine = found if mistake.way.find is way.find else mistake.way.found(setup, logits)
                verdict = judge.mistake(mistake.way.merged(setup, mine))
                comparisons.append(
                    Comparison(name, mistake.title, given.name, judge.needle, verdict, own)
                )
    return Exactness(ours, tuple(comparisons))


class _Judge:
    """Compares selections on one input with the plain answer; collective."""

    def __init__(self, setup: Setup, given: Input, answers: Answers, needle: range) -> None:
        self._comm, self._answer = setup.comm, given.winners(answers, setup.shard)
        tokens = torch.tensor(needle, dtype=torch.int32, device=setup.comm.device)
        tokens += given.offset(setup.shard)
        self._needle = tokens[torch.isin(tokens, self._answer[-1])]
        self.needle = len(self._needle)

    def ours(self, selected: Tensor) -> Verdict:
        """Judge what every rank selected by itself, in order."""
        wrong = wrong_tokens(selected, self._answer)
        if selected.shape == self._answer.shape:
            wrong = wrong.maximum((selected != self._answer).any(1).to(wrong.dtype))
        self._comm.all_reduce(wrong, "max")
        return self._verdict(wrong, selected)

    def mistake(self, selected: Tensor) -> Verdict:
        """Judge what all ranks selected alike; each looks at its share of the rows."""
        share = slice(self._comm.rank, None, self._comm.size)
        wrong = torch.zeros(len(selected), dtype=torch.int32, device=selected.device)
        wrong[share] = wrong_tokens(selected[share], self._answer[share])
        self._comm.all_reduce(wrong, "sum")
        return self._verdict(wrong, selected)

    def _verdict(self, wrong: Tensor, selected: Tensor) -> Verdict:
        found = torch.isin(self._needle, selected[-1])
        return Verdict(int((wrong > 0).sum()), int(wrong.sum()), int(found.sum()))


def wrong_tokens(selected: Tensor, answer: Tensor) -> Tensor:
    """Return int32 (rows,): the larger of tokens missing and tokens too many.

    Args:
        selected: int32 (rows, any width), below 0 for none; what is repeated counts once.
        answer: int32 (rows, K), distinct, -1 for none.
    """
    wrong = torch.empty(len(selected), dtype=torch.int32, device=selected.device)
    for rows in row_blocks(len(selected)):
        got, want = selected[rows].sort(dim=1).values.contiguous(), answer[rows].contiguous()
        place = torch.searchsorted(got, want).clamp_(max=got.shape[1] - 1)
        hits = ((got.gather(1, place) == want) & (want >= 0)).sum(1)
        distinct = (got[:, :1] >= 0).sum(1) + ((got.diff(dim=1) > 0) & (got[:, 1:] >= 0)).sum(1)
        wrong[rows] = torch.maximum((want >= 0).sum(1), distinct) - hits
    return wrong
