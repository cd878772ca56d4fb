"""The merge's arithmetic by CUDA kernels: nothing is allocated, nothing synchronises.

One block merges a row, or one warp where a row needs but a search. What a kernel writes depends on
its inputs alone, not on the order in which threads run: keys are distinct, and where they are not
(ids repeated in a list), positions decide.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dcp_comm.kernels.cuda.launcher import Launcher
from dcp_comm.kernels.lemma import SplitterShape, splitter_shape
from dcp_comm.kernels.primitives import Emission, Primitives
from dcp_comm.sharding import Shard

THREADS = {512: 128, 1024: 128, 2048: 256, 4096: 512}
"""Threads of a block that sorts up to so many keys, as the sources have it."""

MAX_K = max(THREADS)
MAX_SIZE = 8

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_KEY_BYTES = 8
_WARP = 32
_MOST = 1 << 31


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
        self._launcher = launcher
        self._capacity = next(each for each in THREADS if k <= each)
        self._threads = THREADS[self._capacity]
        # With one run, windows would not hold what is open where valid keys are few.
        self._whole = splitter_shape(k, size, 1 if size == 1 else None)
        self._size = size

    def pack(
        self,
        run: Tensor,
        scores: Tensor,
        ids: Tensor,
        lengths: Tensor | None,
        *,
        shard: Shard,
        mask_neg_inf: bool,
    ) -> None:
        """Encode and sort in one kernel."""
        candidates = _candidates(ids, lengths, shard, mask_neg_inf)
        where = (scores.data_ptr(), scores.stride(0))
        self._sort("pack", run, run.data_ptr(), run.shape[1], *candidates, *where)

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
    ) -> None:
        """Look up, encode and sort in one kernel; a score is read once."""
        candidates = _candidates(ids, lengths, shard, mask_neg_inf)
        dtype = _DTYPES[logits.dtype]
        where = (logits.data_ptr(), logits.stride(0), logits.shape[1], dtype)
        columns = (*where, *_integers(row_starts))
        self._sort("pack_logits", run, run.data_ptr(), run.shape[1], *candidates, *columns)

    def merge_runs(self, runs: Tensor, own: int | None, to: Emission) -> None:
        """Search, fetch the winners, sort them where there are several runs, write."""
        self._merge(runs, -1 if own is None else own, 0, _emission(to))

    def merge_sealed(self, runs: Tensor, ids: Tensor, *, by_position: bool) -> None:
        """The same kernel."""
        nowhere = (0, 0, 0, int(by_position), *_NO_SHARD, *_NO_TABLE)
        self._merge(runs, -1, 1, (ids.data_ptr(), ids.stride(0), *nowhere))

    def unseal(self, ids: Tensor, to: Emission) -> None:
        """Copy, unmark and count in one kernel."""
        rows, k = ids.shape
        self._launch("unseal", rows, 256, 0, ids.data_ptr(), ids.stride(0), k, *_emission(to))

    def settle(self, runs: Tensor, verdicts: Tensor) -> None:
        """Search, one warp a row."""
        shared = _KEY_BYTES * runs.shape[0] * max(self._whole.splitters, self._whole.window)
        whole = (runs.data_ptr(), runs.shape[1], *_sizes(self._size, self._whole))
        self._launch("settle", runs.shape[1], _WARP, shared, *whole, verdicts.data_ptr())

    def copy_splitters(self, splitters: Tensor, run: Tensor, block: int) -> None:
        """One warp a row."""
        rows, k = run.shape
        pointers = (splitters.data_ptr(), run.data_ptr())
        self._launch("copy_splitters", rows, _WARP, 0, *pointers, k, block, splitters.shape[1])

    def open_windows(
        self, splitters: Tensor, starts: Tensor, own: int | None, shape: SplitterShape
    ) -> None:
        """Search the splitters, one warp a row."""
        pointers = (splitters.data_ptr(), starts.data_ptr())
        self._search("open_windows", splitters, shape.splitters, pointers, own, shape)

    def copy_windows(self, windows: Tensor, run: Tensor, starts: Tensor) -> None:
        """One warp a row."""
        rows, k = run.shape
        pointers = (windows.data_ptr(), run.data_ptr())
        sizes = (k, windows.shape[1], starts.data_ptr())
        self._launch("copy_windows", rows, _WARP, 0, *pointers, *sizes)

    def close_windows(
        self,
        splitters: Tensor,
        windows: Tensor,
        verdicts: Tensor,
        own: int | None,
        shape: SplitterShape,
    ) -> None:
        """Search the splitters again, which is cheaper than to keep what they told; then windows."""
        pointers = (splitters.data_ptr(), windows.data_ptr(), verdicts.data_ptr())
        width = max(shape.splitters, shape.window)
        self._search("close_windows", splitters, width, pointers, own, shape)

    def emit_own(self, run: Tensor, verdicts: Tensor | None, to: Emission) -> None:
        """Write the prefix; sort it first if it is wanted by position."""
        pointers = (run.data_ptr(), run.shape[1], _pointer(verdicts))
        self._sort("emit_own", run, *pointers, *_emission(to))

    def _merge(self, runs: Tensor, own: int, seal: int, emission: tuple[int, ...]) -> None:
        shape = self._whole
        rows = runs.shape[1]
        shared = _KEY_BYTES * self._size * max(shape.splitters, shape.window)
        whole = (runs.data_ptr(), rows, *_sizes(self._size, shape))
        name = f"merge_runs_{self._capacity}"
        shared = max(shared, self._sort_bytes)
        self._launch(name, rows, self._threads, shared, *whole, own, seal, *emission)

    def _sort(self, kernel: str, run: Tensor, *args: int) -> None:
        name = f"{kernel}_{self._capacity}"
        self._launch(name, run.shape[0], self._threads, self._sort_bytes, *args)

    @property
    def _sort_bytes(self) -> int:
        """Shared memory of a block that sorts, as the sources assert it."""
        return 12 * self._capacity + 1024

    def _search(
        self,
        kernel: str,
        splitters: Tensor,
        width: int,
        pointers: tuple[int, ...],
        own: int | None,
        shape: SplitterShape,
    ) -> None:
        size, rows, _ = splitters.shape
        sizes = (-1 if own is None else own, rows, *_sizes(size, shape))
        self._launch(kernel, rows, _WARP, _KEY_BYTES * size * width, *pointers, *sizes)

    def _launch(self, kernel: str, rows: int, threads: int, shared: int, *args: int) -> None:
        if rows > 0:
            self._launcher.launch(kernel, (rows, 1), threads, shared, *args)


_NO_SHARD = (0, 1, 0)
_NO_TABLE = (0, 0, 0, 0, 0, 0, 0)


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _integers(column: Tensor | None) -> tuple[int, int]:
    """Return where integers of 32 or 64 bits lie, and whether they have 64."""
    return _pointer(column), int(column is not None and column.dtype == torch.int64)


def _sizes(size: int, shape: SplitterShape) -> Iterator[int]:
    yield from (size, shape.k, shape.block, shape.splitters, shape.settled, shape.window)


def _shard(shard: Shard) -> tuple[int, int, int]:
    """Return rank, size and interleave; no position is beyond the largest interleave here."""
    return shard.rank, shard.size, min(shard.interleave, _MOST)


def _candidates(
    ids: Tensor, lengths: Tensor | None, shard: Shard, mask_neg_inf: bool
) -> tuple[int, ...]:
    columns = (ids.data_ptr(), ids.stride(0), *_integers(lengths))
    return *columns, *_shard(shard), int(mask_neg_inf)


def _emission(to: Emission) -> tuple[int, ...]:
    columns = (to.ids, to.counts, to.certified, to.uncertified)
    ids, *others = (column.data_ptr() for column in columns)
    shard = _NO_SHARD if to.shard is None else _shard(to.shard)
    return ids, to.ids.stride(0), *others, int(to.by_position), *shard, *_table(to)


def _table(to: Emission) -> tuple[int, ...]:
    if to.table is None:
        return _NO_TABLE
    pages = to.table.pages
    where = (pages.data_ptr(), pages.stride(0), pages.shape[0], pages.shape[1])
    return *where, *_integers(to.table.requests), min(to.table.page_size, _MOST)
