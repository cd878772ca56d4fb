"""Strategies: the same rows through every one of them, and what each moved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from dcp_comm.cli.demo.stages import Candidates, Setup, pack
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions

_SCHEMES = (
    ("gather", "global", None),
    ("owner", "global", None),
    ("owner", "local", None),
    ("splitter", "local", "all"),
    ("splitter", "local", "owner"),
)
"""Strategy, output, transport."""


@dataclass(frozen=True)
class Moved:
    """One strategy's merge of all rows, from the point of view of rank 0.

    Attributes:
        name: Strategy, and transport where it has one.
        output: ``global``: all ids to every rank; ``local``: to each rank its own winners.
        wrong: Rows that differ from the plain answer on any rank, in order too.
        received: Bytes, as the ledger counts them.
        seconds: Packing and selecting included.
    """

    name: str
    output: str
    wrong: int
    received: int
    seconds: float


def compare(
    setup: Setup, found: Sequence[Candidates], answer: Tensor, progress: Callable[[str], None]
) -> tuple[Moved, ...]:
    """Merge the candidates by every strategy; collective.

    Args:
        setup: Whose ranks, K and rows.
        found: This rank's candidates.
        answer: The plain answer, int32 (rows, K) global ids.
        progress: Told what comes next.
    """
    progress("the same rows through every strategy")
    answers = {"global": answer, "local": _own(setup, answer)}
    return tuple(_run(setup, found, answers[scheme[1]], *scheme) for scheme in _SCHEMES)


def _run(
    setup: Setup,
    found: Sequence[Candidates],
    answer: Tensor,
    strategy: str,
    output: str,
    transport: str | None,
) -> Moved:
    comm = setup.comm
    merge = TopKMerge(
        comm,
        setup.k,
        setup.rows,
        setup.shard.interleave,
        strategy=strategy,
        output=output,
        options=MergeOptions(transport=transport),
    )
    merge.prepare()
    comm.ledger.reset()
    started = perf_counter()
    ids = pack(merge.begin(setup.rows), found).finish().ids
    seconds, received = perf_counter() - started, comm.ledger.bytes_received
    wrong = (ids != answer).any(1).to(torch.int32)
    comm.all_reduce(wrong, "max")
    name = strategy if transport is None else f"{strategy}, {transport}"
    return Moved(name, output, int(wrong.sum()), received, seconds)


def _own(setup: Setup, answer: Tensor) -> Tensor:
    """Return the winners that this rank owns as local positions, in order, -1 behind them."""
    others = setup.shard.owner(answer) != setup.shard.rank
    own_first = others.to(torch.int8).sort(dim=1, stable=True).indices
    return setup.shard.local_index(answer.masked_fill(others, -1)).gather(1, own_first)
