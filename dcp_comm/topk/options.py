"""What a merge may be told beside its arguments; every default is the library's choice."""

from dataclasses import dataclass, field

from dcp_comm.checks import check_int
from dcp_comm.topk.arguments import Refuse
from dcp_comm.topk.rates import Device

OUTPUTS = ("global", "local", "slots")
ORDERS = ("score", "position")
TRANSPORTS = ("all", "owner")


@dataclass(frozen=True)
class MergeOptions:
    """Settings of single strategies and outputs; the same on every rank.

    Attributes:
        transport: Who evaluates a row of strategy ``splitter``: ``all`` ranks, in two rounds, or
            its ``owner``, in four that move fewer bytes. None for ``all``; strategy ``auto`` then
            takes what it expects to be faster.
        block: B of strategy ``splitter``, keys between two splitters, at most K; None for
            `dcp_comm.kernels.lemma.best_block`.
        page_size: Tokens a page of the block table, for output ``slots``.
        device: How fast the ranks do the arithmetic, for strategy ``auto``; None for what was
            measured on such devices.
        tail: Whether ids behind a row's winners are set to -1. False where whoever reads them goes
            by counts: they are -1 or stay as they were, and a local merge of many rows writes less.

    Raises:
        CommArgumentError: A value is not as above.
    """

    transport: str | None = None
    block: int | None = None
    page_size: int = 64
    device: Device | None = field(default=None, repr=False)
    tail: bool = True

    def __post_init__(self) -> None:
        Refuse("MergeOptions").unless_one_of("transport", self.transport, (None, *TRANSPORTS))
        if self.block is not None:
            check_int("MergeOptions", "block", self.block, 1)
        check_int("MergeOptions", "page_size", self.page_size, 1)
        Refuse("MergeOptions").unless_one_of("tail", self.tail, (True, False))
        if not isinstance(self.device, Device | None):
            raise Refuse("MergeOptions")("device", repr(self.device), "a Device or None")
