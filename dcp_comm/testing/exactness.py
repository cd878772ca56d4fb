"""The merge against a plain stable sort of whole rows, on a live communicator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.sharding import Shard
from dcp_comm.topk.choice import STRATEGIES
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.merge import TopKMerge

ROWS, TOKENS, K, CHUNK_ROWS = 13, 400, 24, 5
LENGTHS = (TOKENS, TOKENS, K + 1, 3, 0)
SPECIALS = (torch.nan, torch.inf, -torch.inf, -0.0, 0.0, 1e-45, -65504.0)


def wrong_rows(comm: Communicator, strategy: str) -> int:
    """Merge rows full of ties and specials, and count those that are not the plain answer.

    Collective. Every rank brings the local top-K of its own tokens, on the communicator's device.
    Outputs ``global`` and ``local`` are compared, as far as the strategy has them, at interleaves
    of 1 and 4, in several chunks.

    Args:
        comm: Of any size, over any backend and device; used but not closed.
        strategy: A name of `dcp_comm.topk.choice.STRATEGIES`.

    Returns:
        Wrong rows of all ranks and cases together, the same number on every rank.
    """
    rows, lengths = some_rows()
    plain = plain_topk(rows, lengths, K)
    wrong = 0
    for interleave in (1, 4):
        shard = Shard(comm.rank, comm.size, interleave)
        mine = [token for token in range(TOKENS) if token // interleave % comm.size == comm.rank]
        own = [[mine.index(token) for token in row if token in mine] for row in plain]
        for output, wanted in (("global", plain), ("local", own)):
            if output in STRATEGIES[strategy].outputs:
                merge = TopKMerge(
                    comm, K, ROWS, interleave, strategy, output, chunk_rows=CHUNK_ROWS
                )
                local = shard.local_length(torch.tensor(lengths, device=comm.device))
                wrong += _differing(merge, rows[:, mine].to(comm.device), local, wanted)
    ranks = comm.agree("wrong rows", {"strategy": strategy}, {"wrong": wrong})
    return sum(int(each["wrong"]) for each in ranks)


def some_rows() -> tuple[Tensor, list[int]]:
    """Return scores float32 (ROWS, TOKENS) and the rows' lengths, the same everywhere.

    In turn: few values, all values, specials, and one position in eight far above the others.
    """
    numbers = torch.Generator().manual_seed(20)
    few = torch.randint(-2, 3, (ROWS, TOKENS), generator=numbers).float()
    every = torch.randn(ROWS, TOKENS, generator=numbers)
    drawn = torch.randint(len(SPECIALS), (ROWS, TOKENS), generator=numbers)
    skewed = every + 9 * (torch.arange(TOKENS) % 8 == 0)
    kinds = torch.stack([few, every, torch.tensor(SPECIALS)[drawn], skewed])
    turns = torch.arange(ROWS)
    return kinds[turns % len(kinds), turns], [LENGTHS[turn % len(LENGTHS)] for turn in range(ROWS)]


def plain_topk(rows: Tensor, lengths: Sequence[int], k: int) -> list[list[int]]:
    """Return each row's winners, best first: sort all its tokens by falling score, cut at ``k``.

    Python's sort is stable: tokens of equal score stay in order. NaN and -inf do not exceed -inf.
    """
    winners = []
    for row, length in zip(rows.tolist(), lengths, strict=True):
        valid = [token for token in range(length) if row[token] > -torch.inf]
        winners.append(sorted(valid, key=[-score for score in row].__getitem__)[:k])
    return winners


def _differing(
    merge: TopKMerge, logits: Tensor, lengths: Tensor, wanted: Sequence[Sequence[int]]
) -> int:
    """Merge this rank's logits and count the rows of its result that are not as wanted."""
    result = merge(*local_topk(logits, K, lengths=lengths), lengths)
    found = zip(result.ids.tolist(), result.counts.tolist(), strict=True)
    right = (([*row, *[-1] * (K - len(row))], len(row)) for row in wanted)
    return sum(one != other for one, other in zip(found, right, strict=True))
