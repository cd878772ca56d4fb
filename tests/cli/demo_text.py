"""A text for the demo: drawn words, the common ones often, as in any text."""

import random
from pathlib import Path

_SYLLABLES = ("ba", "ko", "mi", "ru", "ta", "len", "dor", "sif")


def drawn_words(words: int) -> list[str]:
    """The same words every time."""
    random_ = random.Random(0)
    vocabulary = [a + b + c for a in _SYLLABLES for b in _SYLLABLES for c in _SYLLABLES]
    return [vocabulary[int(random_.paretovariate(0.6)) % len(vocabulary)] for _ in range(words)]


def write_text(path: Path, words: int) -> str:
    """Write a text and return its path."""
    path.write_text(" ".join(drawn_words(words)))
    return str(path)
