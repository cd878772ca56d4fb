"""The outcome as a page of text, or as fields."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from textwrap import indent

from dcp_comm.cli.demo.corpus import NEEDLE
from dcp_comm.cli.demo.embedding import DIM, HEADS, SCORE_BOUND
from dcp_comm.cli.demo.exactness import Comparison
from dcp_comm.cli.demo.inputs import INPUTS
from dcp_comm.cli.demo.outcome import Outcome, Page
from dcp_comm.cli.demo.strategies import Moved
from dcp_comm.cli.demo.where import BINS, Share, stretches
from dcp_comm.cli.table import both, size, table

_SHADES = " .:-=+*#%@"
_BAR = 36


def page(outcome: Outcome) -> Page:
    """Return all that is told of an outcome."""
    return Page(as_text(outcome), as_fields(outcome), last_words(outcome), outcome.failures)


def as_fields(outcome: Outcome) -> dict[str, object]:
    """Return the outcome's fields, ``ok`` and ``failures``, all fit for JSON."""
    return {"ok": not outcome.failures, "failures": outcome.failures, **asdict(outcome)}


def as_text(outcome: Outcome) -> str:
    """Return the page, without its `last_words`."""
    acts = (_head, _memory, _exactness, _strategies, _where)
    return "\n\n".join("\n".join(act(outcome)) for act in acts) + "\n"


def last_words(outcome: Outcome) -> str:
    """Return the verdict in one line."""
    rows, memory = outcome.rows_checked, outcome.memory
    if not outcome.failures:
        return (
            f"PASS: 0 of {rows:,} rows differ from the plain answer, in {size(memory.used)} "
            f"where the published merge takes {size(memory.published)}"
        )
    broken = outcome.options.broken
    cause = f" (--break {broken} put a mistake into our way)" if broken else ""
    return f"FAIL: {'; '.join(outcome.failures)}{cause}"


def _head(outcome: Outcome) -> Iterable[str]:
    text, run, options = outcome.text, outcome.run, outcome.options
    rows = ", ".join(f"{rows:,} {name}" for name, rows in run.segments.items())
    yield f"Exact top-K of a real text on {run.ranks} ranks"
    yield ""
    yield f"  text    {text.title}: {text.tokens:,} tokens"
    yield f'  needle  "{NEEDLE}"'
    yield f"          hidden at depth {options.needle_depth:g}, from token {text.at:,}"
    yield f"  ranks   {run.ranks} over backend {run.backend}, on {run.device.partition(':')[0]};"
    yield f"          tokens dealt {options.interleave} at a time"
    yield f"  rows    {run.rows:,}: {rows}; K = {options.k:,}"
    yield f"  scores  {HEADS} heads x {DIM} dims of small integers, sum of weighted ReLUs;"
    yield f"          none can reach {SCORE_BOUND:,} < 2^24, so float32 is exact;"
    yield f"          largest seen {run.largest_score:,}"


def _memory(outcome: Outcome) -> Iterable[str]:
    memory, run, k = outcome.memory, outcome.run, outcome.options.k
    p, rows, chunk = run.ranks, run.rows, run.chunk_rows
    published = f"(1 + 2 x {p}) x 8 x {rows:,} rows x {k:,}", (1 + 2 * p) * 8 * rows * k
    ours = f"{p} x 8 x {chunk:,} rows x {k:,}", p * 8 * chunk * k
    yield f"1. Memory: the exchange, under an allocator capped at {memory.reserved:,} bytes a rank"
    yield ""
    yield from _table(
        ("", "formula", "in bytes", "taken"),
        ("published", published[0], f"{published[1]:,}", both(memory.published)),
        ("ours", ours[0], f"{ours[1]:,}", both(memory.used)),
    )
    same = "the same tokens as ours" if memory.same else "other tokens than ours"
    yield ""
    yield "  published  vLLM's merge: pack all rows, gather into a second buffer, copy to a third"
    yield f"             under the cap it {memory.failure or 'did not fail'}"
    yield f"             given what it takes, it selects {same}"
    yield f"  ours       all {memory.reserved:,} bytes reserved and locked before the first row"
    yield f"             served {rows:,} rows, at most {chunk:,} in one exchange"
    yield "  counted    buffers of the exchange; results and blocks of 64 rows come on top of both"


def _exactness(outcome: Outcome) -> Iterable[str]:
    yield "2. Exactness: every published mistake is our own way with one stage replaced"
    yield ""
    yield from _table(
        ("mistake", "input", "rows wrong", "tokens wrong", "needle found", "rows wrong, ours"),
        *map(_comparison, outcome.exactness.comparisons),
    )
    yield ""
    for given in INPUTS:
        yield f"  {given.name:<9}{given.note}"
    yield f"  {outcome.run.rows:,} rows each; a swapped token counts once; ours: order too"
    yield "  Most mistakes still find the needle or most of it: that it is found proves little."


def _comparison(each: Comparison) -> tuple[str, ...]:
    needle = f"{each.mistake.needle} of {each.needle}"
    wrong = each.mistake.rows, each.mistake.tokens
    return each.title, each.input, *(f"{count:,}" for count in wrong), needle, f"{each.ours.rows:,}"


def _strategies(outcome: Outcome) -> Iterable[str]:
    gathered = outcome.strategies[0].received
    yield "3. Strategies: the same rows, the same winners, fewer bytes"
    yield ""
    yield from _table(
        ("strategy", "output", "rows wrong", "bytes received", "a row", "less by", "seconds"),
        *(_moved(each, gathered, outcome.run.rows) for each in outcome.strategies),
    )
    yield ""
    yield "  global   every rank gets the ids of all winners"
    yield "  local    each rank gets its own winners, all it needs to attend to its own tokens"


def _moved(each: Moved, gathered: int, rows: int) -> tuple[str, ...]:
    less = f"{gathered / max(1, each.received):.1f} x"
    counts = f"{each.wrong:,}", f"{each.received:,}", f"{each.received / rows:,.0f}"
    return each.name, each.output, *counts, less, f"{each.seconds:.2f}"


def _where(outcome: Outcome) -> Iterable[str]:
    shares, moved, found = outcome.where.shares, outcome.where.travelled, outcome.found
    yield "4. Where: how the winners lie over the ranks, what travelled, how long it took"
    yield ""
    yield f"  all rows     winners{'':<{_BAR + 11}}in a full row"
    yield from _bars(shares)
    yield ""
    yield "  the question, along the text"
    top = stretches(shares)
    for rank, share in enumerate(shares):
        yield f"  rank {rank:<3}|{_strip(share, top)}|"
    mark = min(BINS - 1, outcome.text.at * BINS // outcome.text.tokens)
    yield f"  {'':<9}{' ' * mark}^ needle"
    yield f"  asked    {found.question}"
    yield f"  found    token {found.position:,}, on rank {found.rank}: {found.excerpt}"
    yield ""
    yield f"  moved    {moved.received:,} bytes to each rank in {moved.calls} exchange(s),"
    yield f"           {moved.control:,} bytes of fingerprints"
    for stage, seconds in outcome.seconds.items():
        yield f"  {seconds:5.2f} s  {stage}"


def _bars(shares: Sequence[Share]) -> Iterable[str]:
    total, most = sum(share.total for share in shares), max(share.total for share in shares)
    for rank, share in enumerate(shares):
        bar = "#" * round(_BAR * share.total / max(1, most))
        part = f"{share.total / max(1, total):.1%}"
        spread = f"{share.least:,} .. {share.most:,}"
        yield f"  rank {rank:<3}{share.total:>12,}  {part:>6}  {bar:<{_BAR}}  {spread}"


def _strip(share: Share, top: int) -> str:
    """Shade the stretches of the text by the winners in them."""
    last = len(_SHADES) - 1
    return "".join(_SHADES[-(-count * last // max(1, top))] for count in share.question)


def _table(header: Sequence[str], *rows: Sequence[str]) -> Iterable[str]:
    return indent(table(header, rows), "  ").splitlines()
