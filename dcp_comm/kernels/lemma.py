"""The sizes of the block-splitter lemma, which `dcp_comm.topk.splitter` proves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SplitterShape:
    """The sizes of the lemma.

    Attributes:
        k: K, keys a run, and winners.
        block: B, keys between two splitters of a list.
        splitters: m, splitters a list.
        settled: t, blocks that win as soon as the t-th largest splitter is known.
        window: W, winners still open then, and keys of each list among which they are.
    """

    k: int
    block: int
    splitters: int
    settled: int
    window: int


def splitter_shape(k: int, size: int, block: int | None = None) -> SplitterShape:
    """Return m = ceil(K / B), t = max(0, floor((K - (p-1)(B-1)) / B)) and W = K - t B.

    At most ``t B + (p-1)(B-1)`` keys reach the t-th largest splitter, and that is at most K.

    Args:
        k: Keys a list, and winners, K.
        size: Lists p.
        block: B; None for `best_block`.
    """
    block = best_block(k, size) if block is None else block
    settled = max(0, (k - (size - 1) * (block - 1)) // block)
    return SplitterShape(k, block, -(-k // block), settled, k - settled * block)


def best_block(k: int, size: int) -> int:
    """Return the power of two that moves the fewest keys; close to sqrt(K / (p-1))."""

    def moved(block: int) -> int:
        shape = splitter_shape(k, size, block)
        return shape.splitters + shape.window

    return min((1 << bit for bit in range(k.bit_length())), key=moved)
