"""Blocks that more than one kind of kernel has."""

_MOST_THREADS = 1024
_FEW_LISTS = 4  # of which a thread has four words each, of more two


def selector(capacity: int, lists: int) -> tuple[int, int]:
    """Return the threads and the shared bytes of a block that selects, as the sources assert it.

    Args:
        capacity: Winners, at most.
        lists: How many times as many words a row has.
    """
    threads = min(_MOST_THREADS, capacity // (4 if lists <= _FEW_LISTS else 2))
    return threads, 10 * capacity + 32 * threads + 3328
