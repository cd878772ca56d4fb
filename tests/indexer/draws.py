"""Cases drawn at random, within limits drawn at random."""

from dataclasses import replace

import numpy as np

from dcp_comm.indexer import IndexerLimits
from tests.indexer import storages
from tests.indexer.cases import Case, Step, a_step


def random_case(size: int, seed: int, steps: int, longest: int = 48) -> Case:
    """Limits drawn at random, and steps that keep within them."""
    rng = np.random.default_rng([size, seed])
    limits = random_limits(rng, size, longest)
    output, order = rng.choice(["local", "global", "slots"]), rng.choice(["score", "position"])
    chunk_rows = None if rng.random() < 0.3 else int(rng.integers(1, 9))
    drawn = tuple(random_step(rng, limits) for _ in range(steps))
    aligned = limits.page_size * limits.head_dim % 4 == 0
    storage = rng.choice([each for each in storages.NAMES if aligned or each != "fp8"])
    places = tuple(rng.permutation(size).tolist())
    return Case(
        limits,
        size,
        drawn,
        str(output),
        str(order),
        chunk_rows,
        storage=str(storage),
        places=places,
    )


def random_limits(rng: np.random.Generator, size: int, longest: int) -> IndexerLimits:
    """Small limits; the logits hold from one row to all."""
    interleave = int(rng.choice([1, 2, 4]))
    limits = IndexerLimits(
        k=int(rng.integers(1, 17)),
        heads=int(rng.integers(1, 4)),
        head_dim=int(rng.integers(1, 5)),
        query_rows=int(rng.integers(1, 24)),
        requests=int(rng.integers(1, 6)),
        max_model_len=int(rng.integers(1, longest + 1)),
        next_n=int(rng.integers(1, 5)),
        interleave=interleave,
        page_size=interleave * int(rng.integers(1, 5)),
    )
    rows = int(rng.integers(1, 30))
    return replace(limits, logits_bytes=4 * rows * limits.local_tokens(size) + 3)


def random_step(rng: np.random.Generator, limits: IndexerLimits) -> Step:
    """Any shape within the limits: full, empty, short and padding requests, rows before none."""
    path = str(rng.choice(["prefill", "decode"]))
    requests = int(rng.choice([0, 1, limits.requests, int(rng.integers(0, limits.requests + 1))]))
    most = limits.max_model_len
    pool = [most, most, 1, 0, -1, limits.k, limits.k + 1, int(rng.integers(0, most + 1))]
    lengths = np.minimum(rng.choice(pool, requests), most)
    if path == "decode":
        ragged = rng.random() < 0.3
        least = 0 if ragged else limits.next_n
        counts = rng.integers(least, limits.next_n + 1, requests)
    else:
        total = limits.query_rows if rng.random() < 0.5 else rng.integers(0, limits.query_rows + 1)
        counts = np.bincount(rng.integers(0, max(1, requests), total), minlength=requests)
        counts = counts[:requests]
    return a_step(
        path,
        lengths.tolist(),
        counts.tolist(),
        heads=limits.heads,
        head_dim=limits.head_dim,
        seed=int(rng.integers(2**31)),
    )
