"""As `tests.models.gloo_ranks`, 64 tokens decoded."""

from tests.models.gloo_ranks import compare


def main() -> None:
    """All of it."""
    compare(steps=64)
