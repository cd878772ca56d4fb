"""The text that is indexed: its words, and a needle to ask for."""

import pydoc_data.topics
from dataclasses import dataclass
from pathlib import Path

from dcp_comm.cli.options import UsageError

NEEDLE = "The brass lighthouse key hangs behind the seventh blue flowerpot."
QUESTION = "Where hangs the brass lighthouse key, behind which blue flowerpot?"

_PUNCTUATION = ".,;:!?\"'`()[]{}<>*"


@dataclass(frozen=True)
class Book:
    """A text with a needle in it.

    Attributes:
        title: Where it comes from.
        words: All of it, one word a token.
        needle: The needle's positions.
    """

    title: str
    words: tuple[str, ...]
    needle: range


def read(path: str | None) -> tuple[str, list[str]]:
    """Return a file's title and words; without one, the interpreter's documentation topics.

    Raises:
        UsageError: The file cannot be read as UTF-8 text.
    """
    if path is None:
        topics = pydoc_data.topics.topics
        text = "\n".join(topics[name] for name in sorted(topics))
        return "Python's documentation topics", text.split()
    try:
        return path, Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text: {error}") from error


def hide_needle(title: str, words: list[str], depth: float) -> Book:
    """Return the book with the needle inserted at ``depth``, 0 for the front, 1 for the end."""
    first, needle = round(depth * len(words)), NEEDLE.split()
    everything = (*words[:first], *needle, *words[first:])
    return Book(title, everything, range(first, first + len(needle)))


def fold(word: str) -> str:
    """Return what stands for a word in the index: lower case, no punctuation around it."""
    return word.strip(_PUNCTUATION).casefold() or word
