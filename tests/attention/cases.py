"""Rows, tokens and winners, dense attention over them in float64, and how the ranks run them.

Nothing of the oracle imports the product: a row's winners are attended to one head at a time, and
tokens are dealt by `tests.oracle`.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dcp_comm.attention import Attended, LseMerge, sparse_attention
from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from dcp_comm.workspace import Workspace
from tests import oracle
from tests.oracle import Ints

Doubles = npt.NDArray[np.float64]

JUNK = (np.nan, 3e38, -np.inf, 0.0)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 2.0**-19, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-9}
WAYS = ("all_to_all", "reduce_scatter")


@dataclass(frozen=True)
class Case:
    """T rows that attend to some of the tokens dealt over the ranks.

    Attributes:
        size: Ranks.
        rows, tokens: T, and tokens in all.
        heads, groups: Query heads and key heads.
        key_dim, value_dim: Elements of a key and of a value.
        prefix: The value is the first elements of the key.
        width: K, most winners a row.
        few: Rows have few winners, some none.
    """

    size: int
    rows: int
    tokens: int
    heads: int
    groups: int
    key_dim: int
    value_dim: int
    prefix: bool = False
    width: int = 12
    few: bool = False
    interleave: int = 1
    dtype: torch.dtype = torch.float32
    base: str = "e"
    way: str = "all_to_all"
    chunk_rows: int | None = None
    seed: int = 0
    device: str = "cpu"

    @cached_property
    def q(self) -> Tensor:
        return self._drawn(1, self.rows, self.heads, self.key_dim)

    @cached_property
    def keys(self) -> Tensor:
        return self._drawn(2, self.tokens, self.groups, self.key_dim)

    @cached_property
    def values(self) -> Tensor:
        if self.prefix:
            return self.keys[..., : self.value_dim]
        return self._drawn(3, self.tokens, self.groups, self.value_dim)

    @cached_property
    def winners(self) -> list[Ints]:
        """Of each row, in any order."""
        most = min(self.width, self.tokens)
        rng = np.random.default_rng([self.seed, 4])
        counts = rng.integers(0, (min(3, most) if self.few else most) + 1, self.rows)
        return [rng.permutation(self.tokens)[:count] for count in counts]

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.key_dim)

    @property
    def kept(self) -> int:
        return self.heads // self.size

    def _drawn(self, stream: int, *shape: int) -> Tensor:
        rng = np.random.default_rng([self.seed, stream])
        return torch.from_numpy(2 * rng.standard_normal(shape)).to(self.dtype)

    @cached_property
    def expected(self) -> tuple[Doubles, Doubles]:
        """Dense attention (T, H, V), LSE (T, H)."""
        q, keys, values = (each.double().numpy() for each in (self.q, self.keys, self.values))
        out = np.zeros((self.rows, self.heads, self.value_dim))
        lse = np.full((self.rows, self.heads), -np.inf)
        for row, winners in enumerate(self.winners):
            for head in range(self.heads if len(winners) else 0):
                group = head // (self.heads // self.groups)
                logits = self.scale * (keys[winners, group] @ q[row, head])
                weights = np.exp(logits - logits.max())
                out[row, head] = weights @ values[winners, group] / weights.sum()
                lse[row, head] = logits.max() + math.log(weights.sum())
        return out, lse / (math.log(2) if self.base == "2" else 1)

    def shard(self, rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A rank's keys, values, winners (T, K) and counts; other rows of its cache are junk."""
        rng = np.random.default_rng([self.seed, 5, rank])
        hand = oracle.deal(self.tokens, self.size, self.interleave)[rank]
        slots = rng.permutation(len(hand) + 3)[: len(hand)]
        place = dict(zip(hand, slots.tolist(), strict=True))
        winners = np.full((self.rows, self.width), -1)
        counts = np.zeros(self.rows, dtype=np.int64)
        for row, tokens in enumerate(self.winners):
            mine = [place[token] for token in tokens.tolist() if token in place]
            winners[row, : len(mine)] = mine
            counts[row] = len(mine)
        cache = []
        for each in (self.keys, self.values):
            junk = rng.choice(JUNK, (len(hand) + 3, *each.shape[1:]))
            cache.append(torch.from_numpy(junk).to(self.dtype))
        for each, whole in zip(cache, (self.keys, self.values), strict=True):
            each[torch.from_numpy(slots)] = whole[list(hand)]
        keys, values = cache
        return keys, values, torch.from_numpy(winners).int(), torch.from_numpy(counts)

    def attend(self, rank: int) -> Attended:
        """One rank's own attention."""
        keys, values, *winners = (each.to(self.device) for each in self.shard(rank))
        value = self.value_dim if self.prefix else values
        q = self.q.to(self.device)
        return sparse_attention(q, keys, value, *winners, scale=self.scale, base=self.base)

    def merger(self, comm: Communicator) -> LseMerge:
        """The case's merge."""
        shape = max(1, self.rows), self.heads, self.value_dim, self.dtype
        return LseMerge(comm, *shape, self.way, self.base, self.chunk_rows)


def serve(comm: Communicator, case: Case) -> Attended:
    """Attend and merge in reserved, poisoned memory; what empty ranks hold is poisoned too."""
    merge, workspace = case.merger(comm), Workspace(comm.device)
    workspace.reserve(*merge.specs(), owner="LSE merge")
    workspace.lock()
    for view in workspace.take(*merge.specs()):
        view.view(torch.uint8).fill_(0xA5)
    mine = case.attend(comm.rank)
    mine.out[mine.lse == -torch.inf] = torch.nan
    merged = merge(*mine, workspace=workspace)
    return Attended(merged.out.cpu(), merged.lse.cpu())


def check(case: Case) -> list[Attended]:
    """Compare every rank's heads with dense attention.

    Raises:
        AssertionError: Out of tolerance, or a NaN.
    """
    results = run_ranks(serve, case.size, case, device=case.device)
    for rank, (out, lse) in enumerate(results):
        compare(case, slice(rank * case.kept, (rank + 1) * case.kept), out, lse)
    return results


def compare(case: Case, heads: slice, out: Tensor, lse: Tensor) -> None:
    """Compare some heads with dense attention."""
    want, want_lse = case.expected
    rounding = ROUNDING[case.dtype]
    largest = max(1.0, float(case.values.double().abs().max()) if case.tokens else 1.0)
    assert out.dtype == case.dtype
    assert lse.dtype == torch.float32
    np.testing.assert_allclose(out.double().numpy(), want[:, heads], atol=rounding * largest)
    np.testing.assert_allclose(lse.double().numpy(), want_lse[:, heads], atol=2e-5, rtol=2e-6)


def digest(result: Attended) -> str:
    """Of every bit."""
    return hashlib.sha256(b"".join(each.float().numpy().tobytes() for each in result)).hexdigest()


CASES = {
    f"{dtype} {base}": Case(
        3, 70, 40, heads=6, groups=1, key_dim=9, value_dim=5, prefix=True, dtype=dtype, base=base
    )
    for dtype in DTYPES
    for base in ("e", "2")
}
