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
bytes are exact, as a communicator's ledger counts them. The time is a straight line per round and
per kernel, fitted to measurements; it ranks schemes and does not replace a benchmark.
"""

from dataclasses import dataclass, replace

from dcp_comm.kernels.lemma import SplitterShape

KEY_BYTES = 8
ID_BYTES = 4


@dataclass(frozen=True)
class Link:
    """What connects the ranks.

    Attributes:
        name: How tables call it.
        latency_us: Microseconds of a round that moves nothing.
        bytes_per_us: Bytes a rank receives in a microsecond.
    """

    name: str
    latency_us: float
    bytes_per_us: float


LINKS = {
    link.name: link
    for link in (
        Link("nvlink", 17.0, 320_000.0),  # 8 GPUs of one host
        Link("pcie", 25.0, 22_000.0),
        Link("network", 30.0, 11_000.0),  # 100 Gbit
    )
}


@dataclass(frozen=True)
class Device:
    """How fast a rank sorts and selects.

    Attributes:
        name: How tables call it.
        kernel_us: Microseconds of a selection kernel on no data.
        bytes_per_us: Bytes that such a kernel reads and writes in a microsecond.
        sort_us: Microseconds of sorting no data.
        keys_per_us: Keys sorted in a microsecond, in rows of a few thousand.
    """

    name: str
    kernel_us: float
    bytes_per_us: float
    sort_us: float
    keys_per_us: float


H200 = Device("h200", kernel_us=17.0, bytes_per_us=1.79e6, sort_us=8.0, keys_per_us=54_000.0)
"""Through a selector that takes 59 us at 1024 rows and 354 us at 8192 (K = 2048, p = 4), and a
32-bit radix sort with the id as payload that takes 47 and 318 us."""


@dataclass(frozen=True)
class Scheme:
    """One way to merge, for one K and p.

    Attributes:
        name: How tables call it.
        strategy: The strategy of `TopKMerge` that it describes; empty where it is a comparison.
        output: What every rank can learn: ``global`` ids of all winners, or its ``local`` ones.
        chunk_rows: Rows exchanged at a time by default.
        size: p.
        rounds: Collectives a chunk, one after the other.
        peer_bytes: Bytes received a row from each other rank; a dealt row if ``dealt``.
        scratch_row: Bytes of scratch a row.
        dealt: Rows are dealt to owners, so a chunk is padded to a multiple of p.
        kernels: Local kernels a chunk, sorting aside.
        touched_row: Bytes a row that those read and write.
        sorted_row: Keys a row that are sorted first.
    """

    name: str
    strategy: str
    output: str
    chunk_rows: int
    size: int
    rounds: int
    peer_bytes: int
    scratch_row: int
    kernels: int
    touched_row: float
    sorted_row: int
    dealt: bool = False

    def scratch_bytes(self, rows: int) -> int:
        """Bytes of scratch of one chunk of ``rows`` rows, without alignment."""
        return self.scratch_row * (self.size * self._owned(rows) if self.dealt else rows)

    def received_bytes(self, rows: int, chunk_rows: int | None = None) -> int:
        """Bytes each rank receives for ``rows`` rows."""
        chunk = chunk_rows or rows or 1
        owned = rows // chunk * self._owned(chunk) + self._owned(rows % chunk)
        return (self.size - 1) * self.peer_bytes * owned

    def exchange_us(self, rows: int, link: Link, chunk_rows: int | None = None) -> float:
        """Modelled microseconds on the link for ``rows`` rows; 0 for one rank."""
        if self.size == 1:
            return 0.0
        rounds = self.rounds * _chunks(rows, chunk_rows)
        return rounds * link.latency_us + self.received_bytes(rows, chunk_rows) / link.bytes_per_us

    def local_us(self, rows: int, device: Device = H200, chunk_rows: int | None = None) -> float:
        """Modelled microseconds of sorting and selection for ``rows`` rows."""
        start = self.kernels * device.kernel_us + bool(self.sorted_row) * device.sort_us
        row = self.touched_row / device.bytes_per_us + self.sorted_row / device.keys_per_us
        return _chunks(rows, chunk_rows) * start + rows * row

    def _owned(self, rows: int) -> int:
        """Rows of a chunk that one rank evaluates."""
        return -(-rows // self.size) if self.dealt else rows


def schemes(k: int, size: int, shape: SplitterShape, output: str = "global") -> tuple[Scheme, ...]:
    """Return every scheme of the table above, the comparison first.

    Args:
        k: Winners a row, and candidates a row and rank.
        size: Number of ranks p.
        shape: Sizes of the splitter's messages.
        output: As for `TopKMerge`. Only ``owner`` costs less if ids are not wanted everywhere; the
            splitter tells each rank its own winners, whatever is asked for.
    """
    owner = (_owner if output == "global" else _owner_local)(k, size)
    return (_vllm(k, size), _gather(k, size), owner, *_splitters(k, size, shape))


def _chunks(rows: int, chunk_rows: int | None) -> int:
    return -(-rows // (chunk_rows or rows or 1))


def _vllm(k: int, size: int) -> Scheme:
    packed = KEY_BYTES * k
    return Scheme(
        name="vllm",
        strategy="",
        output="global",
        chunk_rows=1024,
        size=size,
        rounds=1,
        peer_bytes=packed,
        scratch_row=(1 + 2 * size) * packed,
        kernels=3,  # pack, copy, select
        touched_row=2 * packed + 3 * size * packed + ID_BYTES * k,
        sorted_row=0,
    )


def _gather(k: int, size: int) -> Scheme:
    run = KEY_BYTES * k
    return Scheme(
        name="gather",
        strategy="gather",
        output="global",
        chunk_rows=1024,
        size=size,
        rounds=1,
        peer_bytes=run,
        scratch_row=size * run,
        kernels=1,
        touched_row=size * run + ID_BYTES * k,
        sorted_row=k,
    )


def _owner(k: int, size: int) -> Scheme:
    run, ids = KEY_BYTES * k, ID_BYTES * k
    return Scheme(
        name="owner",
        strategy="owner",
        output="global",
        chunk_rows=1024,
        size=size,
        rounds=2,
        peer_bytes=run + ids,
        scratch_row=2 * run + ids,  # sent, received, winners
        kernels=2,
        touched_row=run + ids / size + 2 * ids,
        sorted_row=k,
        dealt=True,
    )


def _owner_local(k: int, size: int) -> Scheme:
    """Lengths of the winning prefixes come back, not ids."""
    run = KEY_BYTES * k
    return replace(
        _owner(k, size),
        output="local",
        peer_bytes=run + KEY_BYTES,
        scratch_row=2 * (run + KEY_BYTES),
        touched_row=run + ID_BYTES * k,
    )


def _splitters(k: int, size: int, shape: SplitterShape) -> tuple[Scheme, Scheme]:
    """The splitter with both transports: every rank evaluates every row, or each its own."""
    run, ids = KEY_BYTES * k, ID_BYTES * k
    moved = KEY_BYTES * (shape.splitters + shape.window)
    everyone = Scheme(
        name="splitter",
        strategy="splitter",
        output="local",
        chunk_rows=2048,
        size=size,
        rounds=2,
        peer_bytes=moved,
        scratch_row=size * moved + KEY_BYTES + run,
        kernels=2,
        touched_row=size * moved + ids,
        sorted_row=k,
    )
    owners = Scheme(
        name="splitter/owner",
        strategy="splitter",
        output="local",
        chunk_rows=2048,
        size=size,
        rounds=4,
        peer_bytes=moved + 2 * KEY_BYTES,  # and where windows and prefixes begin and end
        scratch_row=2 * moved + 2 * KEY_BYTES + run,
        kernels=4,
        touched_row=2 * moved + ids,
        sorted_row=k,
        dealt=True,
    )
    return everyone, owners
