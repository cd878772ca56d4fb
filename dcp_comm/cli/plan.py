"""What every way of merging costs in memory, traffic, time and tokens; runs nothing.

The bytes are exact. The times are modelled: a straight line per round and per kernel.
"""

import argparse
from collections.abc import Iterable, Iterator
from itertools import groupby

from dcp_comm import footprint, planning
from dcp_comm.cli import budget, plot
from dcp_comm.cli.options import UsageError, fraction, whole
from dcp_comm.cli.table import as_json, both, table
from dcp_comm.errors import CommArgumentError
from dcp_comm.models import GIB, MODELS
from dcp_comm.planning import Holding, Plan, Route
from dcp_comm.topk.rates import LINKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    count, add = whole(1), parser.add_argument
    add("--rows", type=count, default=8192, help="query rows of one step (default 8192)")
    add("--k", type=count, default=2048, help="winners a row (default 2048)")
    add("--size", type=count, default=4, help="number of ranks (default 4)")
    add("--chunk-rows", type=count, help="rows exchanged at a time (default: each route's own)")
    add("--block", type=count, help="block size of the splitter (default: what moves least)")
    add("--model", choices=sorted(MODELS), help="whose KV cache to count in")
    add("--bytes-per-token", type=float, help="bytes that a token costs each rank, for any model")
    add("--memory", type=float, metavar="GIB", help="memory of a rank's device")
    add("--utilization", type=fraction, default=0.945, help="share of it in use (default 0.945)")
    add("--weights", type=float, default=0.0, metavar="GIB", help="in use before any KV cache")
    add(
        "--reserve",
        type=_owner,
        action="append",
        default=[],
        metavar="OWNER=BYTES",
        help="other scratch that is alive together with the merge's; repeatable",
    )
    budget.add_arguments(parser)
    add("--curve", action="store_true", help="2, 4 and 8 ranks over context lengths, and decode")
    add("--plot", metavar="FILE", help="draw bytes and time over context length for --size ranks")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan or the curve, and draw the picture if asked for one.

    Raises:
        UsageError: The options do not make a plan, or the picture cannot be drawn.
    """
    try:
        if arguments.plot:
            points = planning.curve(arguments.k, (arguments.size,), arguments.block)
            plot.draw(arguments.plot, points)
        if arguments.curve:
            print(_curve(arguments))
        else:
            communicator, rank = budget.communicator_bytes(arguments)
            if rank == 0:
                print(_plan(arguments, communicator))
    except CommArgumentError as error:
        raise UsageError(str(error)) from error
    return 0


def _plan(arguments: argparse.Namespace, communicator: int) -> str:
    plan = planning.plan(
        arguments.rows,
        arguments.k,
        arguments.size,
        arguments.chunk_rows,
        block=arguments.block,
        model=arguments.model,
        bytes_per_token=arguments.bytes_per_token,
        memory=arguments.memory,
        utilization=arguments.utilization,
        weights=arguments.weights,
        reserved=dict(arguments.reserve),
    )
    whole_model = budget.of(arguments, communicator) if arguments.model else None
    if arguments.json:
        more = {"budget": whole_model.to_dict()} if whole_model else {}
        return as_json(plan.to_dict() | more)
    model_s = budget.sections(whole_model) if whole_model else ()
    return "\n\n".join([*_sections(plan), *model_s])


def _owner(text: str) -> tuple[str, int]:
    """Parse ``OWNER=BYTES``, as an argparse type."""
    owner, _, nbytes = text.rpartition("=")
    if not owner or not nbytes.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no OWNER=BYTES")
    return owner, int(nbytes)


def _sections(plan: Plan) -> Iterator[str]:
    shape = plan.splitter
    yield (
        f"{plan.rows:,} rows, K = {plan.k:,}, {plan.size} ranks; splitter: {shape.splitters} "
        f"splitters, one each {shape.block} keys, and windows of {shape.window} keys"
    )
    yield "Scratch of a rank, in bytes\n" + table(
        ("route", "ids", "chunk rows", "chunked", "unchunked", "TopKMerge has it"),
        [_scratch(route) for route in plan.routes],
        left=2,
    )
    head = "Exchange of a rank; times in us, modelled; sort + select and the whole merge for H200"
    names = ("route", "rounds", "received", "a row", *LINKS, "sort + select", "whole")
    lines = [_exchange(route, plan.rows) for route in plan.routes]
    yield f"{head}\n{table((*names, 'split below'), lines)}"
    yield _rivals(plan)
    if plan.token_bytes is not None:
        yield _tokens(plan, plan.token_bytes)


def _scratch(route: Route) -> tuple[str, ...]:
    return (
        route.name,
        route.output,
        f"{route.chunk_rows:,}",
        both(route.scratch_bytes),
        both(route.unchunked_bytes),
        "yes" if route.available else "no",
    )


def _exchange(route: Route, rows: int) -> tuple[str, ...]:
    modelled = (*route.exchange_us.values(), route.local_us, route.merge_us)
    times = (f"{us:,.0f}" for us in modelled)
    received = route.received_bytes
    split = f"{route.split_below:,}" if route.split_below else "never"
    return (route.name, f"{route.rounds}", both(received), f"{received / rows:,.0f}", *times, split)


def _rivals(plan: Plan) -> str:
    loss = plan.replicated_loss
    lost = "" if loss is None else f", so {loss:.1%} fewer tokens"
    return (
        "Without a merge\n"
        "replicated index keys: no exchange, but on each rank and layer with an indexer "
        f"{plan.replicated_bytes:g} bytes more a token{lost}\n"
        "split query rows: every rank gathers the index keys, ranks its part of the rows and "
        "gathers ids;\nfewer bytes than a route while the step's context is below its last column"
    )


def _tokens(plan: Plan, token_bytes: float) -> str:
    lines = [f"KV cache and what is reserved beside it; {token_bytes:,.0f} bytes a token and rank"]
    if plan.model is not None:
        lines.append(f"{plan.model.name}: {plan.model.source}")
    if plan.holdings:
        owners, most = tuple(plan.holdings[-1].reserved), plan.holdings[0].tokens
        header = ("route", *owners, "KV cache", "tokens that fit", "change")
        lines.append(table(header, [_holding(each, owners, most) for each in plan.holdings]))
        lines.append(f"not counted unless given by --reserve: {footprint.MEASURED}")
    return "\n".join(lines)


def _holding(holding: Holding, owners: tuple[str, ...], most: int) -> tuple[str, ...]:
    return (
        holding.route or "without a merge",
        *(both(holding.reserved.get(owner, 0)) for owner in owners),
        f"{holding.cache_bytes / GIB:.2f} GiB",
        f"{holding.tokens:,}",
        f"{holding.tokens - most:,}",
    )


def _curve(arguments: argparse.Namespace) -> str:
    points = planning.curve(arguments.k, block=arguments.block)
    if arguments.json:
        return as_json([{"length": length, **plan.to_dict()} for length, plan in points])
    measures = ("MiB of scratch", "MiB received", *(f"{name} us" for name in LINKS))
    head = "Every cell for 2 / 4 / 8 ranks; time of the exchange, modelled\n"
    return head + table(("context", "rows", "route", *measures), list(_curve_rows(points)), left=3)


def _curve_rows(points: Iterable[tuple[int | None, Plan]]) -> Iterator[tuple[str, ...]]:
    """One line a length, number of rows and route."""
    for (length, rows), group in groupby(points, lambda point: (point[0], point[1].rows)):
        context = "decode" if length is None else f"{length:,}"
        for routes in zip(*(plan.routes for _, plan in group), strict=True):
            measures = zip(*map(_measures, routes), strict=True)
            cells = (" / ".join(map(_digits, values)) for values in measures)
            yield (context, f"{rows:,}", routes[0].name, *cells)


def _measures(route: Route) -> tuple[float, ...]:
    return (
        route.scratch_bytes / 2**20,
        route.received_bytes / 2**20,
        *route.exchange_us.values(),
    )


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
