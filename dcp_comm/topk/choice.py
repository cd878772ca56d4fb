"""Which strategy merges how many rows: the one asked for, or by the model of `dcp_comm.topk.cost`.

One plan serves merges of few rows, where rounds cost most, the next one more rows, where bytes do.
Which plan serves a number of rows depends on agreed values only, and not on the most rows that may
come; so the scratch that covers all plans never shrinks when more rows are allowed.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dcp_comm.checks import check_int
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.specs import BufferSpec, layout
from dcp_comm.topk import measured
from dcp_comm.topk.arguments import Refuse
from dcp_comm.topk.cost import FEW_ROWS, Scheme, schemes
from dcp_comm.topk.gather import Gather
from dcp_comm.topk.keys import PAD
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.owner import Owner
from dcp_comm.topk.rates import Link
from dcp_comm.topk.result import MergeResult
from dcp_comm.topk.splitter import Splitter
from dcp_comm.topk.strategy import Problem, Strategy
from dcp_comm.topk.transport import Everyone, Owners, cut
from dcp_comm.topk.turns import turns
from dcp_comm.workspace import Workspace, WorkspaceSlot

_TOLD_BYTES = 240  # of one value that ranks agree on: a record holds a kilobyte

STRATEGIES: dict[str, type[Strategy]] = {each.name: each for each in (Gather, Owner, Splitter)}


@dataclass(frozen=True)
class Plan:
    """How merges of up to ``most_rows`` rows go, down to where the plan before it ends.

    Attributes:
        scheme: What it costs.
        strategy: What does it.
        chunk_rows: Rows exchanged at a time.
        most_rows: Rows it serves at most.
    """

    scheme: Scheme
    strategy: Strategy
    chunk_rows: int
    most_rows: int

    @cached_property
    def specs(self) -> tuple[BufferSpec, ...]:
        """Scratch of its largest chunk."""
        return self.strategy.specs(self.chunk_rows)

    @cached_property
    def places(self) -> list[slice]:
        """Where each lies in scratch that several plans share, in words of 8 bytes."""
        offsets, _ = layout("TopKMerge", self.specs)
        parts = zip(self.specs, offsets, strict=True)
        return [slice(at // 8, -(-(at + spec.nbytes) // 8)) for spec, at in parts]


class Choice:
    """The plans of one merge, few rows first.

    Args:
        problem: What is merged.
        max_rows: Most rows of a merge.
        strategy: A name of `STRATEGIES`, or ``auto``.
        chunk_rows: Rows exchanged at a time; None for each scheme's own.
        options: Settings of single strategies.
        link: What connects the ranks.
    """

    def __init__(
        self,
        problem: Problem,
        max_rows: int,
        strategy: str,
        chunk_rows: int | None,
        options: MergeOptions,
        link: Link,
    ) -> None:
        self._asked, self._chunk_rows = strategy, chunk_rows
        self._options, self._link = options, link
        self._device = options.device or measured.device_of(problem.comm.device)
        self._lists = problem.selects_lists
        self._shape = splitter_shape(problem.k, problem.comm.size, options.block)
        self._schemes = self._candidates(problem, options)
        self.plans = tuple(self._plans(problem, max_rows))

    def plan(self, rows: int) -> Plan:
        """Return the plan for a merge of so many rows."""
        return next(plan for plan in self.plans if rows <= plan.most_rows)

    @cached_property
    def specs(self) -> tuple[BufferSpec, ...]:
        """Scratch of every plan: its own buffers, or one that holds those of any."""
        if len(self.plans) == 1:
            return self.plans[0].specs
        nbytes = max(layout("TopKMerge", plan.specs)[1] for plan in self.plans)
        return (BufferSpec("merge", (nbytes // 8,), torch.int64),)

    def scratch(
        self,
        refuse: Refuse,
        given: Sequence[Tensor] | None,
        workspace: Workspace | WorkspaceSlot | None,
        device: torch.device,
    ) -> Sequence[Tensor]:
        """Return the views of `specs` that the caller gave, or take or allocate them.

        Raises:
            CommArgumentError: They are not of `specs`, or there is a workspace as well.
            WorkspaceExhausted: The workspace is locked and too small.
        """
        if given is not None and workspace is not None:
            raise refuse("workspace", "scratch as well", "one of them")
        if workspace is not None:
            given = workspace.take(*self.specs)
        if given is None:
            return [torch.empty(s.shape, dtype=s.dtype, device=device) for s in self.specs]
        refuse.unless_scratch(given, self.specs)
        return given

    def views(self, scratch: Sequence[Tensor], plan: Plan) -> Sequence[Tensor]:
        """Return the plan's own buffers in memory of `specs`."""
        if len(self.plans) == 1:
            return scratch
        # In inference mode view(dtype) would make an inference tensor, read-only outside of it.
        with torch.inference_mode(False):
            return [
                cut(scratch[0][words].view(spec.dtype), *spec.shape)
                for spec, words in zip(plan.specs, plan.places, strict=True)
            ]

    def warm_up(self) -> None:
        """Merge padding by every plan, in its smallest and its largest chunk; collective."""
        for plan in self.plans:
            problem, strategy = plan.strategy.problem, plan.strategy
            device = problem.comm.device
            scratch = [torch.empty(s.shape, dtype=s.dtype, device=device) for s in plan.specs]
            uncertified = torch.zeros((), dtype=torch.int64, device=device)
            for rows in (1, plan.chunk_rows):
                strategy.run(scratch, rows).fill_(PAD)
                splitters = strategy.splitters(scratch, rows)
                if splitters is not None:
                    splitters.keys.fill_(PAD)
                out = MergeResult.allocate(rows, problem.k, device)
                strategy.merge(scratch, problem.emission(out, uncertified))

    @property
    def agreed(self) -> dict[str, object]:
        """What every rank must have alike: what was asked for, what came of it, by which model."""
        plans = [f"{p.scheme.name} {p.chunk_rows} to {p.most_rows}" for p in self.plans]
        return {
            "strategy": self._asked,
            "chunk_rows": self._chunk_rows,
            "options": self._options,
            "link": _bounded(repr(self._link)),
            "device": f"{_bounded(self._device.name, 80)} {_digest(self._device)}",
            "lists": FEW_ROWS if self._lists else 0,
            "plans": _bounded(", ".join(plans)),
            "costs": _digest((measured.NAMED, measured.GPU, measured.CPU)),
        }

    def explain(self) -> str:
        """Return a line a plan: what it moves, in what memory, what the model says of all."""
        why = "chosen by the model of costs" if self._asked == "auto" else "asked for"
        return "\n".join(self._line(plan, why) for plan in self.plans)

    def _line(self, plan: Plan, why: str) -> str:
        scheme, rows = plan.scheme, plan.most_rows
        received = scheme.received_bytes(scheme.size) / scheme.size
        nbytes = sum(spec.nbytes for spec in plan.specs)
        times = ", ".join(f"{each.name} {self._us(each, rows):.0f} us" for each in self._schemes)
        return (
            f"{scheme.name} ({why}) up to {rows} rows: {scheme.rounds} exchanges a chunk of"
            f" {plan.chunk_rows} rows, {received:.0f} bytes received a row, {nbytes} bytes of"
            f" scratch; the model over {self._link.name} and {self._device.name} for {rows} rows:"
            f" {times}"
        )

    def _candidates(self, problem: Problem, options: MergeOptions) -> tuple[Scheme, ...]:
        """Return the schemes that do what was asked for."""
        size, output = problem.comm.size, problem.output
        names = STRATEGIES if self._asked == "auto" else (self._asked,)
        both = self._asked == "auto" and options.transport is None
        dealt = options.transport == "owner"
        return tuple(
            each
            for each in schemes(problem.k, size, self._shape, output)
            if each.strategy in names
            and output in STRATEGIES[each.strategy].outputs
            and (each.strategy != "splitter" or both or each.dealt == dealt)
        )

    def _plans(self, problem: Problem, max_rows: int) -> Iterator[Plan]:
        """Yield the plan for one row, then the one that takes over, and so on."""
        found = turns(self._schemes, self._link, self._device, self._chunk_rows, max_rows)
        ends = [first - 1 for first, _ in found[1:]] + [max_rows]
        for (_, scheme), most in zip(found, ends, strict=True):
            chunk_rows = min(most, self._chunk_rows or scheme.chunk_rows)
            yield Plan(scheme, self._strategy(problem, scheme), chunk_rows, most)

    def _us(self, scheme: Scheme, rows: int) -> float:
        chunk_rows = self._chunk_rows or scheme.chunk_rows
        return scheme.merge_us(rows, self._link, self._device, chunk_rows)

    def _strategy(self, problem: Problem, scheme: Scheme) -> Strategy:
        if scheme.strategy == Splitter.name:
            transport = (Owners if scheme.dealt else Everyone)(problem.comm)
            return Splitter(problem, transport, self._shape)
        return STRATEGIES[scheme.strategy](problem)


def check_options(refuse: Refuse, options: MergeOptions, strategy: str, k: int) -> None:
    """Refuse settings of a strategy that was not asked for, and blocks beyond K.

    Raises:
        CommArgumentError: Says which.
    """
    if not isinstance(options, MergeOptions):
        raise refuse("options", repr(options), "MergeOptions or None")
    if strategy not in ("auto", Splitter.name):
        for name in ("transport", "block"):
            if getattr(options, name) is not None:
                need = f"None, as strategy {strategy!r} has none"
                raise refuse(f"options.{name}", repr(getattr(options, name)), need)
    check_int("TopKMerge", "options.block", options.block or 1, 1, k)


def link_of(refuse: Refuse, link: Link | str | None, device: torch.device, size: int) -> Link:
    """Return the link of that name; None for `dcp_comm.topk.measured.link_between`.

    Raises:
        CommArgumentError: There is none.
    """
    if isinstance(link, Link):
        return link
    if link is None:
        return measured.link_between(device, size)
    if not isinstance(link, str) or link not in measured.NAMED:
        names = ", ".join(map(repr, measured.NAMED))
        raise refuse("link", repr(link), f"a Link, or one of {names}")
    return measured.NAMED[link]


def _digest(costs: object) -> str:
    return hashlib.sha256(repr(costs).encode()).hexdigest()[:16]


def _bounded(text: str, most: int = _TOLD_BYTES) -> str:
    """Return a text that is too long cut, with a digest of all of it."""
    words = text.encode(errors="replace")
    if len(words) <= most:
        return text
    digest = _digest(text)
    return f"{words[: most - len(digest) - 4].decode(errors='ignore')}... {digest}"
