"""Reports of a machine that is exactly as modelled."""

from typing import Any

from dcp_comm.cli.bench import model
from dcp_comm.cli.bench.model import Record
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.topk.cost import Scheme, schemes
from dcp_comm.topk.rates import Device, Link, Pace

K, RANKS = 2048, 4
LINK = Link("p2p-4", 9.0, 100_000.0, 30.0, 250_000.0)
EAGER = Link("p2p-4-eager", 40.0, 250_000.0)
DEVICE = Device(
    "H200",
    pack=Pace(6.0, 90_000.0),
    list=Pace(4.5, 120_000.0),
    select=Pace(4.0, 50_000.0),
    select_own=Pace(5.0, 60_000.0),
    select_few=Pace(4.8, 55_000.0),
    settle=Pace(1.0, 200_000.0),
    narrow=Pace(8.0, 150_000.0),
    emit=Pace(3.0, 300_000.0),
)
ROWS = (1, 32, 128, 1024, 8192)
MACHINE = {"device": "H200", "driver": "1.2", "torch": "2", "cuda": "13", "nccl": "2.28"}
OURS = ("gather", "owner", "splitter", "splitter/owner")


def subject(rows: int) -> Record:
    return {"kind": "random", "rows": rows, "length": 1 << 17, "k": K, "ranks": RANKS}


def collective(nbytes: int, link: Link, mode: str = "graph", **changes: Any) -> Record:
    """As ``bench collectives`` tells it, on a link that is exactly as modelled."""
    us = link.us(nbytes * (RANKS - 1) / RANKS)
    algbw = nbytes / us / 1e3
    busbw = algbw * (RANKS - 1) / RANKS
    names = {"backend": "pynccl", "mode": mode, "size": nbytes}
    return {**names, "time": us, "algbw": algbw, "busbw": busbw, **changes}


def stage(name: str, rows: int, us: float) -> Record:
    return {"stage": name, "mode": "graph", "subject": subject(rows), "timing": {"us": us}}


def schemes_of(output: str) -> dict[str, Scheme]:
    return {each.name: each for each in schemes(K, RANKS, splitter_shape(K, RANKS), output)}


def stages() -> list[Record]:
    """Of a device that is exactly as modelled."""
    found = [stage("another", 1, 1e9), stage("whole local part, auto, local", 1, 1e9)]
    for rows in ROWS:
        for name, steps in (model.STAGES | model.OF_GPU).items():
            paces = [getattr(DEVICE, step) for step in steps]
            us = sum(pace.start_us + rows * K / pace.keys_per_us for pace in paces)
            found.append(stage(name, rows, us))
        for output, routes in (("local", OURS), ("global", OURS[:2])):
            for name in routes:
                us = schemes_of(output)[name].local_us(rows, DEVICE)
                found.append(stage(f"whole local part, {name}, {output}", rows, us))
    return found


def merge(route: str, rows: int, us: float, **changes: Any) -> Record:
    place = {"output": "local", "mode": "graph", "backend": "pynccl", "pieces": 1}
    told = {"route": route, "why": "asked for", "subject": subject(rows), "timing": {"us": us}}
    return {**told, **place, **changes}


def merges(output: str = "local", link: Link = LINK) -> list[Record]:
    """As the model has them, and ``auto`` as the best of them."""
    told = []
    for rows in ROWS:
        times = {
            each.name: each.merge_us(rows, link, DEVICE, min(rows, each.chunk_rows))
            for each in schemes_of(output).values()
            if output == "local" or each.strategy != "splitter"
        }
        vllm = times.pop("vllm")
        told += [merge(name, rows, us, output=output) for name, us in times.items()]
        told.append(merge("auto", rows, min(times.values()), output=output))
        told.append(merge("seed, unchunked", rows, vllm, output=output, why=""))
    return told


def report(**changes: Any) -> Record:
    told = {
        "schema": 1,
        "machine": {**MACHINE, "environment": {}},
        "collectives": [collective(1 << bit, LINK) for bit in range(10, 28, 2)],
        "stages": stages(),
        "merges": merges() + merges("global"),
    }
    return {**told, **changes}
