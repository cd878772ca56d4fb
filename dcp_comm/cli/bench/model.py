"""The model of costs fitted to times: the least relative errors of all of them together.

Every time is a sum: for each message a start and so much a byte, by link; for each step a start and
so much a key. Collectives tell of links alone, stages of the device alone, merges of both; so links
and device are solved for at once, from all reports, with nothing below 0. A link has two starts and
rates. Which messages go by which is first taken from a bend, then from what came out, until that
stays. Of several bends that one counts by which ``auto`` would be right most often, and of those
the one with the least errors.

Times of merges and stages are those of CUDA graphs where there are any. Eager ones are the host's,
and links of eager collectives are fitted beside them for who needs one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.topk.cost import Scheme, schemes
from dcp_comm.topk.measured import through_host
from dcp_comm.topk.rates import STEPS, Device, Link, Pace

Record = dict[str, Any]

STAGES = {"pack + sort": ("pack",), "splitter searches + emit": ("narrow", "emit")}
"""Steps of the stages that ``bench merge`` times by themselves."""
OF_GPU = {"pack unsorted": ("list",), "select unsorted lists + emit": ("select",)}
OF_CPU = {"select sorted runs + emit": ("select",)}
"""Those that only one device takes: the other has lists where this one has runs."""
WHOLE = "whole local part, "
P2P, NO_P2P, CPU, EAGER = "p2p", "no-p2p", "cpu", "-eager"
"""Kinds of links: between GPUs that reach one another, between others, between CPUs; and how the
name of one ends whose calls are eager although they need not be."""

_BENDS = (math.inf, *(float(1 << bit) for bit in range(18, 24)))
_ROUNDS = 8
_START, _RATE, _BULK = "start", "rate", "bulk "
_FASTEST = 1e12  # of what takes no longer for more


@dataclass(frozen=True)
class Time:
    """A time, and what it is made of.

    Attributes:
        us: Microseconds.
        link: Over which messages came; empty for none.
        received: How often so many bytes came at once.
        done: Steps, how often each started, and its keys; none of a collective.
    """

    us: float
    link: str
    received: tuple[tuple[int, float], ...]
    done: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class Fitted:
    """What came of it.

    Attributes:
        links: By name, those of collectives in the order in which they came.
        device: None where neither stages nor merges tell of one.
        errors: Relative, signed: of each link's collectives, and of the stages under ``stages``.
    """

    links: dict[str, Link]
    device: Device | None
    errors: dict[str, list[float]]


def mode_of(reports: Sequence[Record]) -> str:
    """Return the mode whose merges and stages tell of the device."""
    timed = [each["mode"] for report in reports for each in (*report["merges"], *report["stages"])]
    return "graph" if "graph" in timed else "eager"


def link_name(report: Record, ranks: int, backend: str, mode: str) -> str:
    """Return how a link is called: kind and ranks, then the backend if merges went over another."""
    machine = report["machine"]
    between = NO_P2P if through_host(machine["environment"]) else P2P
    kind = between if machine["cuda"] else CPU
    eager = EAGER if mode == "eager" and machine["cuda"] else ""
    usual = report["merges"][0]["backend"] if report["merges"] else backend
    return f"{kind}-{ranks}{eager}" + ("" if backend == usual else f" {backend}")


def ranks_of(link: str) -> int:
    """Return the number of ranks in a link's name."""
    return int(link.split(maxsplit=1)[0].removesuffix(EAGER).rpartition("-")[2])


def scheme_of(merge: Record) -> Scheme | None:
    """Return what a merge by a strategy that was asked for did; None for any other."""
    if not merge["why"]:
        return None
    subject = merge["subject"]
    return _scheme(subject["k"], subject["ranks"], merge["output"], merge["route"])


def all_rows(merge: Record) -> int:
    """Return the rows of all pieces of a merge."""
    return int(merge["subject"]["rows"] * merge["pieces"])


def rows_of(merge: Record) -> tuple[int, int]:
    """Return a merge's rows and those of its chunks."""
    rows, scheme = all_rows(merge), scheme_of(merge)
    return rows, min(rows, scheme.chunk_rows) if scheme else rows


def times(reports: Sequence[Record]) -> list[Time]:
    """Return everything that the model is fitted to."""
    mode = mode_of(reports)
    found = [time for report in reports for time in _collectives(report)]
    for report in reports:
        found += [
            time for each in report["stages"] if each["mode"] == mode for time in _stage(each)
        ]
        found += [
            time
            for each in report["merges"]
            if each["mode"] == mode
            for time in _merge(report, each)
        ]
    return found


def fit(reports: Sequence[Record], misses: Callable[[Fitted], int]) -> Fitted:
    """Return links and device, by the bend that ``misses`` least, then by that of least errors.

    Links over which no merge went are fitted each by itself.

    Args:
        reports: Of ``bench merge``.
        misses: How often ``auto`` would be wrong.
    """
    told = times(reports)
    machine = reports[0]["machine"]
    name = machine["device"] if machine["cuda"] else CPU
    merged = {each.link for each in told if each.done}
    whole = _best([each for each in told if each.link in merged], name, misses)
    for link in dict.fromkeys(each.link for each in told if each.link not in merged):
        alone = _best([each for each in told if each.link == link], name, lambda _: 0)
        whole.links.update(alone.links)
        whole.errors.update(alone.errors)
    return whole


def _best(told: Sequence[Time], name: str, misses: Callable[[Fitted], int]) -> Fitted:
    def rank(fitted: Fitted) -> tuple[int, float]:
        squares = [relative(fitted, each) ** 2 for each in told]
        # Rounded, or noise would bend what is straight.
        return misses(fitted), round(sum(squares) / max(1, len(squares)), 4)

    return min((_fitted(told, bend, name) for bend in _BENDS), key=rank)


def modelled(fitted: Fitted, time: Time) -> float:
    """Return the microseconds that the model has for a time."""
    link = fitted.links.get(time.link)
    us = sum(count * link.us(nbytes) for count, nbytes in time.received) if link else 0.0
    for step, starts, keys in time.done if fitted.device else ():
        pace: Pace = getattr(fitted.device, step)
        us += starts * pace.start_us + keys / pace.keys_per_us
    return us


def relative(fitted: Fitted, time: Time) -> float:
    """Return the model's relative error, signed."""
    return modelled(fitted, time) / time.us - 1


def _collectives(report: Record) -> Iterator[Time]:
    for each in report["collectives"]:
        # busbw / algbw is (p - 1) / p, the share of the output that other ranks send.
        share = each["busbw"] / each["algbw"]
        link = link_name(report, round(1 / (1 - share)), each["backend"], each["mode"])
        yield Time(each["time"], link, ((1, each["size"] * share),), ())


def _stage(stage: Record) -> Iterator[Time]:
    of_device = OF_CPU if stage["mode"] == "eager" else OF_GPU
    subject, steps = stage["subject"], (STAGES | of_device).get(stage["stage"])
    rows, k = subject["rows"], subject["k"]
    if stage["stage"].startswith(WHOLE):
        route, output = stage["stage"].removeprefix(WHOLE).split(", ")
        scheme = _scheme(k, subject["ranks"], output, route)
        if scheme is not None:
            yield Time(stage["timing"]["us"], "", (), tuple(scheme.done(rows)))
    elif steps is not None:
        done = tuple((step, 1, rows * k) for step in steps)
        yield Time(stage["timing"]["us"], "", (), done)


def _merge(report: Record, merge: Record) -> Iterator[Time]:
    scheme = scheme_of(merge)
    if scheme is None:
        return
    ranks = merge["subject"]["ranks"]
    link = link_name(report, ranks, merge["backend"], merge["mode"])
    received = tuple(scheme.received(*rows_of(merge))) if ranks > 1 else ()
    done = tuple(scheme.done(*rows_of(merge)))
    yield Time(merge["timing"]["us"], link, received, done)


def _scheme(k: int, size: int, output: str, route: str) -> Scheme | None:
    every = schemes(k, size, splitter_shape(k, size), output)
    return next((each for each in every if each.name == route and each.strategy), None)


def _fitted(told: Sequence[Time], bend: float, name: str) -> Fitted:
    links, solved = dict[str, Link](), dict[str, float]()
    for _ in range(_ROUNDS):
        rows = [_terms(each, links.get(each.link), bend) for each in told]
        solved = _least(rows, [each.us for each in told])
        before, links = links, {each.link: _link(each.link, solved) for each in told if each.link}
        if links == before:
            break
    fitted = Fitted(links, _device(name, told, solved), {})
    for each in told:
        if not (each.link and each.done):
            place = each.link or "stages"
            fitted.errors.setdefault(place, []).append(relative(fitted, each))
    return fitted


def _terms(time: Time, link: Link | None, bend: float) -> dict[str, float]:
    """Return how much of each unknown makes a time, over a link as far as it is known."""
    terms: dict[str, float] = {}

    def add(what: str, starts: float, size: float) -> None:
        for name, amount in ((_START, starts), (_RATE, size)):
            key = f"{what} {name}"
            terms[key] = terms.get(key, 0.0) + amount

    for count, nbytes in time.received:
        bulk = nbytes > bend if link is None else _is_bulk(link, nbytes)
        add(_BULK + time.link if bulk else time.link, count, count * nbytes)
    for step, starts, keys in time.done:
        add(step, starts, keys)
    return terms


def _is_bulk(link: Link, nbytes: float) -> bool:
    return link.us(nbytes) < link.latency_us + nbytes / link.bytes_per_us


def _least(rows: Sequence[dict[str, float]], us: Sequence[float]) -> dict[str, float]:
    """Return the unknowns, none below 0, by which the rows come nearest to the times, relatively.

    The most negative unknown is left out, and all others are found again, until there is none.
    """
    names = sorted({name for row in rows for name, amount in row.items() if amount})
    while names:
        wanted = torch.tensor([[row.get(name, 0.0) for name in names] for row in rows])
        matrix = wanted.double() / torch.tensor(us).double()[:, None]
        scale = matrix.norm(dim=0)
        ones = torch.ones(len(rows), 1, dtype=torch.float64)
        found = torch.linalg.lstsq(matrix / scale, ones, driver="gelsd").solution[:, 0]
        worst = int(found.argmin())
        if found[worst] >= -1e-12:
            return dict(zip(names, (found / scale).clamp(min=0).tolist(), strict=True))
        del names[worst]
    return {}


def _link(name: str, solved: dict[str, float]) -> Link:
    """Return both lines of a link, or the one for which there were messages; else it is free."""
    lines = (name, _BULK + name)
    found = [
        _pair(each, solved) for each in lines if {f"{each} {_START}", f"{each} {_RATE}"} & {*solved}
    ]
    # One rank sends nothing, and what came out below 0 was left out.
    return Link(name, *(number for pair in found or [(0.0, _FASTEST)] for number in pair))


def _device(name: str, told: Sequence[Time], solved: dict[str, float]) -> Device | None:
    if {step for each in told for step, _, _ in each.done} < {*STEPS}:
        return None
    return Device(name, **{step: Pace(*_pair(step, solved)) for step in STEPS})


def _pair(what: str, solved: dict[str, float]) -> tuple[float, float]:
    """Return start and rate, as a table has them."""
    slope = solved.get(f"{what} {_RATE}", 0.0)
    start = solved.get(f"{what} {_START}", 0.0)
    return round(start, 2), max(0.1, round(1 / max(slope, 1 / _FASTEST), 1))


def summary(errors: Iterable[float]) -> str:
    """Return the errors' middle and largest, in words."""
    sizes = [abs(error) for error in errors]
    return f"off by {median(sizes):.0%} in the middle, {max(sizes):.0%} at most"
