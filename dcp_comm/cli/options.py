"""What the commands' options share."""

import argparse
from collections.abc import Callable


class UsageError(Exception):
    """Options that parse but cannot be served; the message says what to change."""


def whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return an argparse type for whole numbers in ``least .. most``."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number in {least} .. {most}")
        return int(text)

    return parse


def fraction(text: str) -> float:
    """Parse a number in 0 .. 1, as an argparse type."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number in 0 .. 1")
    return value
