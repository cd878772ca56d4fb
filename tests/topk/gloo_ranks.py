"""One rank of `tests.topk.test_gloo`: every strategy on cases that all processes build alike."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

import dcp_comm as dc
from tests.processes import report
from tests.topk.cases import Case, Outcome
from tests.topk.scores import KINDS, drawn, drawn_lengths
from tests.topk.variants import merges_on_a_rank, variants


def cases(size: int) -> Iterator[Case]:
    """Every output in every order, over all kinds of scores; rows that do not deal evenly."""
    targets = itertools.product(("global", "local", "slots"), ("score", "position"))
    for seed, (output, order) in enumerate(targets):
        rng = np.random.default_rng(seed)
        k, rows = (37, 45) if seed % 2 else (300, 7)
        scores = [drawn(kind, rows, size * k, rng) for kind in list(KINDS)[seed % 2 :: 2]]
        lengths = drawn_lengths(len(scores) * rows, size * k, k, rng)
        case = Case(np.concatenate(scores), lengths, size, k, interleave=4, output=output)
        yield replace(case, order=order, chunk_rows=50, seed=seed)


def digest(outcome: Outcome) -> str:
    """Of every bit."""
    arrays = outcome.ids, outcome.counts, outcome.certified
    return hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest()


def main() -> None:
    """Report, case by case, what every variant gave."""
    with dc.init("torch", "cpu") as comm:
        for case in cases(comm.size):
            chosen = list(variants(case.output, case.k))
            outcomes = merges_on_a_rank(comm, case, chosen)
            report(digests=[digest(each) for each in outcomes])


if __name__ == "__main__":
    main()
