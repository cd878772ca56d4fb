"""The merge's arithmetic by CUDA kernels: nothing is allocated, nothing synchronises.

One block merges a row; where rows need but a search, a block has several. What a kernel writes
depends on its inputs alone, not on the order in which threads run: keys are distinct, and where
they are not (ids repeated in a list), positions decide.
"""

from torch import Tensor

from dcp_comm.kernels.cuda.arguments import (
    DTYPES,
    candidates,
    emission,
    integers,
    packed,
    pointer,
    to_ids,
)
from dcp_comm.kernels.cuda.blocks import selector
from dcp_comm.kernels.cuda.launcher import Launcher
from dcp_comm.kernels.lemma import SplitterShape, splitter_shape
from dcp_comm.kernels.primitives import Emission, Primitives, Splitters
from dcp_comm.sharding import Shard

CAPACITIES = (512, 1024, 2048, 4096)
"""Keys that a block sorts at most; each has its own sources."""

MAX_K = max(CAPACITIES)
MAX_SIZE = 8
MIN_K = MAX_SIZE
"""Ids of a row have to hold a number for each rank."""

_LISTS = (2, 4, 8)  # that kernels select from at most
_KEY_BYTES = 8
_ITEMS = 4  # keys a thread of a block that sorts
_BLOCK = 256  # threads of one that lists, copies or emits
_SEARCHERS = 128  # of one that searches
_WARPS = _BLOCK // 32
_SPAN = 128  # ids that a warp emits at once
_EMITTERS = 132 * 64  # warps that a GPU holds, about: beyond them each emits more
_LANES = 32  # of a warp, of which each run of a row needs one
_SEARCHED = 528  # blocks that search, at least, before they share rows
_SHARED = 160 << 10  # bytes that a block has at most, where the GPU has as many


class CudaPrimitives(Primitives):
    """Kernels for K up to `MAX_K` and up to `MAX_SIZE` ranks, launched on the current stream.

    Args:
        launcher: Compiles and launches them.
        k: Winners a row.
        size: Number of ranks.
    """

    name = "cuda"

    def __init__(self, launcher: Launcher, k: int, size: int) -> None:
        """Choose the kernels; nothing is compiled yet."""
        self.why = "as nothing else was asked for"
        self._launcher = launcher
        self._capacity = next(each for each in CAPACITIES if k <= each)
        self._threads = self._capacity // _ITEMS
        self._whole = _whole(k, size)
        self._size = size
        self._shared = min(_SHARED, launcher.shared_bytes)

    def fits(self, shape: SplitterShape) -> bool:
        """Return whether a row's splitters and windows can be searched in shared memory."""
        return self._list_bytes(max(shape.splitters, shape.window)) <= self._shared

    def prepare(self) -> None:
        """Load every kernel of this K."""
        sized = [f"{kernel}_{self._capacity}" for kernel in ("pack", "merge_runs")]
        rest = ("list", self._selector, "settle", "open_windows", "emit_own")
        for kernel in (*sized, *rest):
            self._launcher.load(kernel)

    def pack(
        self,
        run: Tensor,
        scores: Tensor,
        ids: Tensor,
        lengths: Tensor | None,
        *,
        shard: Shard,
        mask_neg_inf: bool,
        ordered: bool = True,
        splitters: Splitters | None = None,
    ) -> None:
        """Encode, and sort in the same kernel if wanted."""
        asked = candidates(ids, lengths, shard, mask_neg_inf)
        args = (*packed(run, splitters), *asked, scores.data_ptr(), scores.stride(0))
        if ordered:
            self._sort("pack", run, *args)
        else:
            self._list("list", run, *args)

    def pack_logits(
        self,
        run: Tensor,
        logits: Tensor,
        ids: Tensor,
        row_starts: Tensor | None,
        lengths: Tensor | None,
        *,
        shard: Shard,
        mask_neg_inf: bool,
        ordered: bool = True,
        splitters: Splitters | None = None,
    ) -> None:
        """Look up, encode, and sort in the same kernel if wanted; a score is read once."""
        asked = candidates(ids, lengths, shard, mask_neg_inf)
        dtype = DTYPES[logits.dtype]
        where = (logits.data_ptr(), logits.stride(0), logits.shape[1], dtype)
        args = (*packed(run, splitters), *asked, *where, *integers(row_starts))
        if ordered:
            self._sort("pack_logits", run, *args)
        else:
            self._list("list_logits", run, *args)

    def merge_runs(self, runs: Tensor, own: int | None, to: Emission) -> None:
        """Search, fetch the winners, sort and write them."""
        self._merge(runs, -1 if own is None else own, 0, emission(to))

    def merge_sealed(self, runs: Tensor, ids: Tensor, *, by_position: bool) -> None:
        """The same kernel."""
        self._merge(runs, -1, 1, to_ids(ids, by_position))

    def select(self, lists: Tensor, own: int | None, to: Emission) -> None:
        """Count keys in bins, keep what may win, rank it within its bin, write it: one kernel."""
        self._select(lists, 0, emission(to))

    def select_sealed(self, lists: Tensor, ids: Tensor, *, by_position: bool) -> None:
        """The same kernel."""
        self._select(lists, 1, to_ids(ids, by_position))

    def unseal(self, ids: Tensor, to: Emission) -> None:
        """Copy, unmark and count in one kernel."""
        rows, k = ids.shape
        self._launch("unseal", rows, _BLOCK, 0, ids.data_ptr(), ids.stride(0), k, *emission(to))

    def settle(self, runs: Tensor, verdicts: Tensor) -> None:
        """Search."""
        self._settle("settle", runs, verdicts.data_ptr())

    def open_windows(
        self, splitters: Tensor, starts: Tensor, own: int | None, shape: SplitterShape
    ) -> None:
        """Search the splitters."""
        pointers = (splitters.data_ptr(), starts.data_ptr(), -1 if own is None else own)
        rows = splitters.shape[1]
        self._search("open_windows", rows, shape.splitters, shape, *pointers)

    def copy_windows(self, windows: Tensor, run: Tensor, starts: Tensor) -> None:
        """A warp copies a row's."""
        rows, k = run.shape
        sizes = (rows, k, windows.shape[1], starts.data_ptr())
        where = (windows.data_ptr(), run.data_ptr())
        self._launch("copy_windows", -(-rows // _WARPS), _BLOCK, 0, *where, *sizes)

    def close_windows(
        self,
        splitters: Tensor,
        windows: Tensor,
        answers: Tensor,
        own: int | None,
        shape: SplitterShape,
    ) -> None:
        """Search the windows."""
        pointers = (splitters.data_ptr(), windows.data_ptr(), answers.data_ptr())
        whose, rows = -1 if own is None else own, splitters.shape[1]
        self._search("close_windows", rows, shape.window, shape, *pointers, whose)

    def emit_own(self, run: Tensor, verdicts: Tensor | None, to: Emission) -> None:
        """Write the prefix as it is, or sort it first where it is wanted by position."""
        rows, k = run.shape
        if to.by_position:
            self._sort("emit_sorted", run, run.data_ptr(), k, pointer(verdicts), *emission(to))
            return
        spans = min(-(-k // _SPAN), 1 + rows * k // (_SPAN * _EMITTERS))
        blocks = -(-rows * -(-k // (spans * _SPAN)) // _WARPS)
        args = (run.data_ptr(), rows, k, spans, int(to.tail), pointer(verdicts))
        self._launch("emit_own", blocks, _BLOCK, 0, *args, *emission(to))

    def _merge(self, runs: Tensor, own: int, seal: int, to: tuple[int, ...]) -> None:
        """Search; what is found stands in the ids until they are written."""
        size, rows, k = runs.shape
        self._settle("settle_ids", runs, *to[:2])
        name = f"merge_runs_{self._capacity}"
        sizes = (runs.data_ptr(), rows, size, k, own, seal)
        self._launch(name, rows, self._threads, self._sort_bytes, *sizes, *to)

    def _select(self, lists: Tensor, seal: int, to: tuple[int, ...]) -> None:
        _, rows, k = lists.shape
        sizes = (lists.data_ptr(), rows, self._size, k, seal)
        block = selector(self._capacity, self._size)
        self._launch(self._selector, rows, *block, *sizes, *to)

    def _settle(self, kernel: str, runs: Tensor, *where: int) -> None:
        width = max(self._whole.splitters, self._whole.window)
        self._search(kernel, runs.shape[1], width, self._whole, runs.data_ptr(), *where)

    def _list(self, kernel: str, run: Tensor, *args: int) -> None:
        rows, k = run.shape
        if rows > 0:
            blocks = (rows, -(-k // (_BLOCK * _ITEMS)))
            self._launcher.launch(kernel, blocks, _BLOCK, 0, *args)

    @property
    def _selector(self) -> str:
        """The kernel for so many lists."""
        return f"select_{self._capacity}_{next(each for each in _LISTS if self._size <= each)}"

    def _sort(self, kernel: str, run: Tensor, *args: int) -> None:
        name = f"{kernel}_{self._capacity}"
        self._launch(name, run.shape[0], self._threads, self._sort_bytes, *args)

    @property
    def _sort_bytes(self) -> int:
        """Shared memory of a block that sorts, as the sources assert it."""
        return 16 * self._capacity + 1280

    def _search(self, kernel: str, rows: int, width: int, shape: SplitterShape, *args: int) -> None:
        """Launch a search of lists of up to ``width`` keys, several of many rows a block."""
        list_bytes = self._list_bytes(width)
        runs = (self._size - 1).bit_length()
        most = min(_LANES >> runs, self._shared // list_bytes, -(-rows // _SEARCHED))
        shift = max(1, most).bit_length() - 1
        lanes = min(_LANES, _SEARCHERS >> shift).bit_length() - 1
        sizes = (rows, shift, lanes, lanes - runs, _places(width), *_sizes(self._size, shape))
        blocks = -(-rows >> shift)
        self._launch(kernel, blocks, _SEARCHERS, list_bytes << shift, *sizes, *args)

    def _list_bytes(self, width: int) -> int:
        """Shared memory of a row's lists of up to ``width`` keys."""
        return _KEY_BYTES * self._size * _places(width)

    def _launch(self, kernel: str, blocks: int, threads: int, shared: int, *args: int) -> None:
        if blocks > 0:
            self._launcher.launch(kernel, (blocks, 1), threads, shared, *args)


def _whole(k: int, size: int) -> SplitterShape:
    """Return how whole runs are searched: a splitter takes as long to fetch as four keys in a row.

    For one run t is smaller than it could be: windows must hold what is open where valid keys are
    few, and so at least B - 1 keys.
    """
    shapes = (_shape(k, size, 1 << bit) for bit in range(k.bit_length()))
    return min(shapes, key=lambda shape: 4 * shape.splitters + shape.window)


def _shape(k: int, size: int, block: int) -> SplitterShape:
    if size > 1:
        return splitter_shape(k, size, block)
    settled = max(0, k // block - 1)
    return SplitterShape(k, block, -(-k // block), settled, k - settled * block)


def _places(width: int) -> int:
    """Return how many places a list has: one without a key, and an odd number to meet all banks."""
    return width + 1 | 1


def _sizes(size: int, shape: SplitterShape) -> tuple[int, ...]:
    return size, shape.k, shape.block, shape.splitters, shape.settled, shape.window
