"""The picture of ``dcp-comm plan --plot``: bytes and time of every route over context length."""

from collections.abc import Iterable

from dcp_comm.cli.options import UsageError
from dcp_comm.errors import refusal
from dcp_comm.planning import Plan


def draw(path: str, points: Iterable[tuple[int | None, Plan]]) -> None:
    """Write the prefill points of a curve for one number of ranks; the name says the format.

    Raises:
        UsageError: matplotlib is missing, or ``path`` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        remedy = 'Run pip install "dcp-comm[plot]"'
        raise _refused("no matplotlib to draw with", "matplotlib", remedy) from error
    prefill = [(length, plan) for length, plan in points if length is not None]
    lengths, plan = [length for length, _ in prefill], prefill[0][1]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(f"Merging K = {plan.k:,} of {plan.size} ranks, one step of prefill")
    received, time = figure.subplots(1, 2)
    received.set(ylabel="MiB received a rank")
    time.set(ylabel="us on NVLink with sort and selection, modelled")
    for index, first in enumerate(plan.routes):
        routes = [each.routes[index] for _, each in prefill]
        # Thick at first: vLLM's exchange and gather's are the same line.
        style = {"label": first.name, "linewidth": 1.5 if index else 4.0}
        received.plot(lengths, [each.received_bytes / 2**20 for each in routes], **style)
        time.plot(lengths, [each.exchange_us["nvlink"] + each.local_us for each in routes], **style)
    for panel in (received, time):
        panel.set(xscale="log", yscale="log", xlabel="tokens of context")
        panel.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise _refused(str(error), "a file to write, such as plan.svg") from error


def _refused(got: str, need: str, remedy: str = "") -> UsageError:
    return UsageError(refusal("plan", "--plot", got, need, remedy=remedy))
