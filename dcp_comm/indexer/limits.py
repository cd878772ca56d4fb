"""The most that one call of an indexer may bring, from which everything is reserved."""

from dataclasses import dataclass, fields

from dcp_comm import sharding
from dcp_comm.checks import check_int
from dcp_comm.errors import CommArgumentError, refusal


@dataclass(frozen=True)
class IndexerLimits:
    """What an indexer is built for; the same on every rank.

    Attributes:
        k: Tokens selected a row.
        heads: Index heads.
        head_dim: Elements of a key.
        query_rows: Most rows of a prefill call.
        requests: Most requests of a call.
        max_model_len: Most tokens of a request, over all ranks.
        next_n: Most rows a request in a decode call: 1 and its speculative ones.
        interleave: Consecutive tokens dealt to a rank at a time; divides ``page_size``.
        page_size: Tokens a page of the cache.
        logits_bytes: Most bytes of logits alive at once; one row of this rank's own tokens must
            fit.

    Raises:
        CommArgumentError: A value is not a positive int, or the interleave does not divide a page.
    """

    k: int
    heads: int
    head_dim: int
    query_rows: int
    requests: int
    max_model_len: int
    next_n: int = 1
    interleave: int = 1
    page_size: int = 64
    logits_bytes: int = 512 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            most = 2**63 - 1 if field.name == "logits_bytes" else 2**31 - 1
            check_int("IndexerLimits", field.name, getattr(self, field.name), 1, most)
        check_int("IndexerLimits", "requests * next_n", self.decode_rows, 1)
        if self.page_size % self.interleave:
            raise self._refused("interleave", self.interleave, f"a divisor of {self.page_size=}")

    @property
    def decode_rows(self) -> int:
        """Most rows of a decode call."""
        return self.requests * self.next_n

    def local_tokens(self, size: int) -> int:
        """Return the most tokens of one request that any of ``size`` ranks owns.

        Raises:
            CommArgumentError: Logits of so many tokens do not fit ``logits_bytes``.
        """
        tokens = sharding.local_length(
            self.max_model_len, rank=0, size=size, interleave=self.interleave
        )
        if 4 * tokens > self.logits_bytes:
            need = f"at least {4 * tokens}, one row of {tokens} tokens"
            raise self._refused("logits_bytes", self.logits_bytes, need)
        return tokens

    def _refused(self, argument: str, got: int, need: str) -> CommArgumentError:
        remedy = "Choose limits that the engine's cache and memory can keep"
        return CommArgumentError(refusal("IndexerLimits", argument, got, need, remedy=remedy))
