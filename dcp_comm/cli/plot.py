"""The picture of ``dcp-comm plan --plot``: bytes and time of every route over context length."""

from collections.abc import Iterable

from dcp_comm.cli import drawing
from dcp_comm.planning import Plan


def draw(path: str, points: Iterable[tuple[int | None, Plan]]) -> None:
    """Write the prefill points of a curve for one number of ranks; the name says the format.

    Raises:
        UsageError: matplotlib is missing, or ``path`` cannot be written.
    """
    prefill = [(length, plan) for length, plan in points if length is not None]
    lengths, plan = [length for length, _ in prefill], prefill[0][1]
    figure = drawing.figure("plan", 11, 4.5)
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
    drawing.save("plan", figure, path)
