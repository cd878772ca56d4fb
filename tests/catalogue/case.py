"""What a row of the catalogue is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One kind of fault or mistake.

    Attributes:
        what: What is fed or injected.
        want: What must come out.
        tests: ``file::test`` below ``tests/``, or ``file::Class::test``.
        why_not: Where nothing is tested, or not all of it: why.
    """

    what: str
    want: str
    tests: tuple[str, ...] = ()
    why_not: str = ""
