"""Pictures, where matplotlib is installed: an empty one, and how it is written."""

from typing import Any

from dcp_comm.cli.options import UsageError
from dcp_comm.errors import refusal


def figure(operation: str, width: float, height: float) -> Any:
    """Return an empty matplotlib figure, sizes in inches.

    Raises:
        UsageError: matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        remedy = 'Run pip install "dcp-comm[plot]"'
        raise _refused(operation, "no matplotlib to draw with", "matplotlib", remedy) from error
    return Figure(figsize=(width, height), layout="constrained")


def save(operation: str, drawn: Any, path: str) -> None:
    """Write a figure; the name says the format.

    Raises:
        UsageError: ``path`` cannot be written.
    """
    try:
        drawn.savefig(path)
    except (OSError, ValueError) as error:
        need = "a file to write, such as picture.svg"
        raise _refused(operation, str(error), need) from error


def _refused(operation: str, got: str, need: str, remedy: str = "") -> UsageError:
    return UsageError(refusal(operation, "--plot", got, need, remedy=remedy))
