"""What a merge costs before it runs: scratch, bytes received, rounds and modelled time.

p ranks, K candidates a row and rank, keys of 8 bytes, ids of 4. With m splitters and windows of W
keys (`dcp_comm.kernels.lemma`), one chunk of c rows, d = ceil(c / p) of them a rank's where rows
are dealt to owners, costs each rank:

==============  ======  ========================  ===========================
scheme          rounds  bytes received            bytes of scratch
==============  ======  ========================  ===========================
vllm            1       (p-1) * 8K * c            (1 + 2p) * 8K * c
gather          1       (p-1) * 8K * c            p * 8K * c
owner, global   2       (p-1) * 12K * d           20K * p * d
owner, local    2       (p-1) * (8K + 8) * d      (16K + 16) * p * d
splitter        2       (p-1) * 8(m + W) * c      (8p(m + W) + 8 + 8K) * c
splitter/owner  4       (p-1) * 8(m + W + 2) * d  (16(m + W + 1) + 8K) * p * d
==============  ======  ========================  ===========================

``vllm`` is vLLM's own merge, for comparison: packed, gathered rank-major, copied row-major. The
bytes are exact, as a communicator's ledger counts them. The time is a start and a rate for every
message and every step, fitted to measurements (`dcp_comm.topk.measured`); it ranks schemes and does
not replace a benchmark.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dcp_comm.kernels.lemma import SplitterShape
from dcp_comm.topk.rates import Device, Link, Pace

KEY_BYTES = 8
ID_BYTES = 4


FEW_ROWS = 128
"""Rows of a chunk up to which sorting a list takes longer than what it saves. Such lists are sent
as they come, so all ranks need the same number."""

_OF_EVERY_ROW = ("pack", "list", "emit")
"""Steps that a rank does for all rows; the others, where rows are dealt, for those that it owns."""


@dataclass(frozen=True)
class Scheme:
    """One way to merge, for one K and p.

    Attributes:
        name: How tables call it.
        strategy: The strategy of `TopKMerge` that it describes; empty where it is a comparison.
        output: What every rank can learn: ``global`` ids of all winners, or its ``local`` ones.
        chunk_rows: Rows exchanged at a time by default.
        k: K.
        size: p.
        messages: Bytes a row that come from each other rank, collective after collective; of a
            dealt row if ``dealt``.
        scratch_row: Bytes of scratch a row.
        steps: What a rank does itself, of `dcp_comm.topk.rates.STEPS`.
        few: The same for chunks of up to `FEW_ROWS` rows; empty if that is no other.
        dealt: Rows are dealt to owners, so a chunk is padded to a multiple of p.
        foreign: Microseconds a chunk, and a row, of a comparison's own kernels.
    """

    name: str
    strategy: str
    output: str
    chunk_rows: int
    k: int
    size: int
    messages: tuple[int, ...]
    scratch_row: int
    steps: tuple[str, ...] = ()
    few: tuple[str, ...] = ()
    dealt: bool = False
    foreign: tuple[float, float] = (0.0, 0.0)

    @property
    def rounds(self) -> int:
        """Collectives a chunk, one after the other."""
        return len(self.messages)

    def scratch_bytes(self, rows: int) -> int:
        """Bytes of scratch of one chunk of ``rows`` rows, without alignment."""
        return self.scratch_row * (self.size * self._owned(rows) if self.dealt else rows)

    def received_bytes(self, rows: int, chunk_rows: int | None = None) -> int:
        """Bytes each rank receives for ``rows`` rows."""
        return sum(count * nbytes for count, nbytes in self.received(rows, chunk_rows))

    def received(self, rows: int, chunk_rows: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield how often so many bytes come at once, for ``rows`` rows."""
        for count, chunk in _chunks(rows, chunk_rows):
            for message in self.messages:
                yield count, (self.size - 1) * message * self._owned(chunk)

    def done(self, rows: int, chunk_rows: int | None = None) -> Iterator[tuple[str, int, int]]:
        """Yield each step with how often it starts and how many keys it has, for ``rows`` rows."""
        found: dict[str, tuple[int, int]] = {}
        for count, chunk in _chunks(rows, chunk_rows):
            if not count:
                continue
            for step in (chunk <= FEW_ROWS and self.few) or self.steps:
                starts, keys = found.get(step, (0, 0))
                one = self.k * (chunk if step in _OF_EVERY_ROW else self._owned(chunk))
                found[step] = starts + count, keys + count * one
        for step, (starts, keys) in found.items():
            yield step, starts, keys

    def exchange_us(self, rows: int, link: Link, chunk_rows: int | None = None) -> float:
        """Modelled microseconds on the link for ``rows`` rows; 0 for one rank."""
        if self.size == 1:
            return 0.0
        return sum(count * link.us(nbytes) for count, nbytes in self.received(rows, chunk_rows))

    def local_us(self, rows: int, device: Device, chunk_rows: int | None = None) -> float:
        """Modelled microseconds of sorting and selection for ``rows`` rows."""
        start, row = self.foreign
        us = start * sum(count for count, _ in _chunks(rows, chunk_rows)) + row * rows
        for step, starts, keys in self.done(rows, chunk_rows):
            pace: Pace = getattr(device, step)
            us += starts * pace.start_us + keys / pace.keys_per_us
        return us

    def merge_us(
        self, rows: int, link: Link, device: Device, chunk_rows: int | None = None
    ) -> float:
        """Modelled microseconds of a whole merge of ``rows`` rows."""
        local = self.local_us(rows, device, chunk_rows)
        return self.exchange_us(rows, link, chunk_rows) + local

    def _owned(self, rows: int) -> int:
        """Rows of a chunk that one rank evaluates."""
        return -(-rows // self.size) if self.dealt else rows


def schemes(k: int, size: int, shape: SplitterShape, output: str = "global") -> tuple[Scheme, ...]:
    """Return every scheme of the table above, the comparison first.

    Args:
        k: Winners a row, and candidates a row and rank.
        size: Number of ranks p.
        shape: Sizes of the splitter's messages.
        output: As for `TopKMerge`. ``owner`` receives less if ids are not wanted everywhere; the
            splitter tells each rank its own winners, whatever is asked for.
    """
    wide = output == "global"
    owner = (_owner if wide else _owner_local)(k, size)
    return (_vllm(k, size), _gather(k, size, wide), owner, *_splitters(k, size, shape))


def _chunks(rows: int, chunk_rows: int | None) -> Iterator[tuple[int, int]]:
    """Yield how many chunks have how many rows."""
    chunk = chunk_rows or rows or 1
    full, rest = divmod(rows, chunk)
    yield full, chunk
    yield bool(rest), rest


def _vllm(k: int, size: int) -> Scheme:
    """Its kernels pack, copy and select; timed on an H200, up to the bytes that they touch."""
    packed = KEY_BYTES * k
    touched = 2 * packed + 3 * size * packed + ID_BYTES * k
    return Scheme(
        name="vllm",
        strategy="",
        output="global",
        chunk_rows=1024,
        k=k,
        size=size,
        messages=(packed,),
        scratch_row=(1 + 2 * size) * packed,
        foreign=(3 * 17.0, touched / 1.79e6),
    )


def _gather(k: int, size: int, wide: bool) -> Scheme:
    run = KEY_BYTES * k
    return Scheme(
        name="gather",
        strategy="gather",
        output="global",
        chunk_rows=1024,
        k=k,
        size=size,
        messages=(run,),
        scratch_row=size * run,
        steps=("list", "select") if wide else ("pack", "select_own"),
        few=() if wide else ("list", "select_few"),
    )


def _owner(k: int, size: int) -> Scheme:
    run, ids = KEY_BYTES * k, ID_BYTES * k
    return Scheme(
        name="owner",
        strategy="owner",
        output="global",
        chunk_rows=1024,
        k=k,
        size=size,
        messages=(run, ids),
        scratch_row=2 * run + ids,  # sent, received, winners
        steps=("list", "select", "emit"),
        dealt=True,
    )


def _owner_local(k: int, size: int) -> Scheme:
    """Lengths of the winning prefixes come back, not ids."""
    run = KEY_BYTES * k
    return Scheme(
        name="owner",
        strategy="owner",
        output="local",
        chunk_rows=1024,
        k=k,
        size=size,
        messages=(run, KEY_BYTES),
        scratch_row=2 * (run + KEY_BYTES),
        steps=("pack", "settle", "emit"),
        dealt=True,
    )


def _splitters(k: int, size: int, shape: SplitterShape) -> tuple[Scheme, Scheme]:
    """The splitter with both transports: every rank evaluates every row, or each its own."""
    run, splitters, windows = (KEY_BYTES * keys for keys in (k, shape.splitters, shape.window))
    everyone = Scheme(
        name="splitter",
        strategy="splitter",
        output="local",
        chunk_rows=2048,
        k=k,
        size=size,
        messages=(splitters, windows),
        scratch_row=size * (splitters + windows) + KEY_BYTES + run,
        steps=("pack", "narrow", "emit"),
    )
    owners = replace(
        everyone,
        name="splitter/owner",
        messages=(splitters, KEY_BYTES, windows, KEY_BYTES),  # where windows and prefixes lie
        scratch_row=2 * (splitters + windows) + 2 * KEY_BYTES + run,
        dealt=True,
    )
    return everyone, owners
