"""Which scheme serves how many rows: the fastest by the model, until it is too far behind another.

A scheme stays in use until another is clearly faster. Some are nearly equal, and overtake each
other with every chunk: they would make plans by the dozen, each of which has to be warmed up.
"""

from collections.abc import Sequence
from functools import lru_cache

from dcp_comm.topk.cost import FEW_ROWS, Scheme
from dcp_comm.topk.rates import Device, Link

_SLACK = 1.05  # how far behind the fastest a scheme stays in use
_STEP = 1.08  # from one number of rows at which that is asked to the next
_TEETH = 24  # chunks after which the start of one more is within the slack
_DENSE = 32  # rows up to which each number is asked


@lru_cache(maxsize=256)
def turns(
    schemes: tuple[Scheme, ...],
    link: Link,
    device: Device,
    chunk_rows: int | None,
    max_rows: int,
) -> tuple[tuple[int, Scheme], ...]:
    """Return from how many rows on which scheme serves.

    Args:
        schemes: Which there are.
        link: What connects the ranks.
        device: What does the arithmetic.
        chunk_rows: Rows exchanged at a time; None for each scheme's own.
        max_rows: Most rows; what is returned for more of them begins with what is for fewer.
    """
    found: list[tuple[int, Scheme]] = []
    for rows in _samples(schemes, chunk_rows, max_rows):
        times = [
            scheme.merge_us(rows, link, device, chunk_rows or scheme.chunk_rows)
            for scheme in schemes
        ]
        best = min(times)
        if not found or times[schemes.index(found[-1][1])] > _SLACK * best:
            found.append((rows, schemes[times.index(best)]))
    return tuple(found)


def _samples(schemes: Sequence[Scheme], chunk_rows: int | None, max_rows: int) -> list[int]:
    """Return the numbers of rows at which times are compared.

    Every one counts while there are few. Later on times jump after a full chunk, where a chunk has
    no longer few rows, and where owners get one row more; between those they grow evenly.
    """
    if len(schemes) == 1:
        return [1]
    size, rows = schemes[0].size, float(max(_DENSE, 4 * schemes[0].size))
    found = {*range(1, int(rows) + 1)}
    while rows < max_rows:
        rows *= _STEP
        full = int(rows) // size * size
        found |= {full, full + 1}
    for chunk in {chunk_rows or each.chunk_rows for each in schemes}:
        starts = range(0, chunk * _TEETH + 1, chunk)
        found |= {start + more for start in starts for more in (0, 1, FEW_ROWS, FEW_ROWS + 1)}
    return sorted(rows for rows in found if 0 < rows <= max_rows)
