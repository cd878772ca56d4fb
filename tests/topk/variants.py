"""Every strategy with every transport and odd blocks, run on one case and compared."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.topk.options import MergeOptions
from tests.topk.cases import PAGED, Case, Outcome, check_outcomes, columns_of, merge_columns

Variant = tuple[str, MergeOptions]


def variants(output: str, k: int) -> Iterator[Variant]:
    """What can merge for this output; blocks at both ends, an odd one and the default."""
    yield from (("gather", PAGED), ("owner", PAGED), ("auto", PAGED))
    if output == "global":
        return
    for transport in ("all", "owner"):
        yield "splitter", replace(PAGED, transport=transport)
    for block in sorted({1, min(3, k), k}):
        yield "splitter", replace(PAGED, transport="owner" if block == 1 else "all", block=block)


def check_variants(case: Case) -> int:
    """Run all variants against the oracle and each other; returns the (row, variant) checks."""
    chosen = list(variants(case.output, case.k))
    outcomes = run_ranks(merges_on_a_rank, case.size, case, chosen, device=case.device)
    first, *others = zip(*outcomes, strict=True)
    check_outcomes(case, first)
    for variant, each in zip(chosen[1:], others, strict=True):
        for rank, (one, other) in enumerate(zip(first, each, strict=True)):
            for name in ("ids", "counts", "certified"):
                pair = getattr(one, name), getattr(other, name)
                np.testing.assert_array_equal(*pair, f"{name} of rank {rank}, {variant}")
    return case.rows * len(chosen)


def merges_on_a_rank(comm: Communicator, case: Case, chosen: list[Variant]) -> list[Outcome]:
    """Merge the same rows by one variant after another."""
    columns = columns_of(case, comm)
    return [
        merge_columns(comm, replace(case, strategy=strategy, options=options), columns)
        for strategy, options in chosen
    ]
