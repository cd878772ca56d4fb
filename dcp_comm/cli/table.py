"""How subcommands print: a plain table, bytes for people, JSON for programs."""

import json
from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return aligned columns under a header, the first ``left`` of them to the left."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<" if index < left else ">" for index in range(len(widths))]
    return "\n".join(_line(cells, sides, widths) for cells in lines)


def size(nbytes: float) -> str:
    """Return bytes in the largest binary unit that leaves at least 1, to four digits."""
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while nbytes >= 1024 and unit != "GiB":
        nbytes, unit = nbytes / 1024, next(units)
    return f"{nbytes:.4g} {unit}"


def both(nbytes: int) -> str:
    """Return bytes as a number and in a unit: ``150,994,944 (144 MiB)``."""
    return f"{nbytes:,} ({size(nbytes)})"


def as_json(value: object) -> str:
    """Return indented JSON."""
    return json.dumps(value, indent=2)


def _line(cells: Sequence[str], sides: Sequence[str], widths: Sequence[int]) -> str:
    columns = zip(cells, sides, widths, strict=True)
    return "  ".join(f"{cell:{side}{width}}" for cell, side, width in columns).rstrip()
