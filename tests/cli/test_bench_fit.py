"""``bench fit``: lines through points, links and devices from reports, and ``auto`` judged."""

import json
from pathlib import Path
from typing import Any

import pytest

from dcp_comm.cli import main
from dcp_comm.cli.bench import fit
from dcp_comm.cli.bench.fit import behind, fit_device, fit_line, fit_links
from dcp_comm.kernels.lemma import splitter_shape
from dcp_comm.topk.cost import Device, Link, schemes

K, RANKS = 2048, 4
LINK = Link("pynccl graph", 9.0, 250_000.0)
DEVICE = Device("fitted", kernel_us=4.0, bytes_per_us=2e6, sort_us=6.0, keys_per_us=90_000.0)
ROWS = (1, 32, 128, 1024, 8192)


def subject(rows: int) -> dict[str, Any]:
    return {"kind": "random", "rows": rows, "length": 1 << 17, "k": K, "ranks": RANKS}


def collective(nbytes: int, link: Link, mode: str = "graph") -> dict[str, Any]:
    """As ``bench collectives`` tells it, on a link that is exactly a line."""
    received = nbytes * (RANKS - 1) / RANKS
    us = link.latency_us + received / link.bytes_per_us
    algbw = nbytes / us / 1e3
    busbw = algbw * (RANKS - 1) / RANKS
    names = {"backend": "pynccl", "mode": mode, "size": nbytes}
    return {**names, "time": us, "algbw": algbw, "busbw": busbw}


def stage(name: str, rows: int, us: float) -> dict[str, Any]:
    return {"stage": name, "subject": subject(rows), "timing": {"us": us}}


def stages() -> list[dict[str, Any]]:
    """Of a device that is exactly as modelled."""
    touched = {each.name: each for each in found_schemes()}["gather"].touched_row
    sort = [(n, DEVICE.sort_us + n * K / DEVICE.keys_per_us) for n in ROWS]
    select = [(n, DEVICE.kernel_us + n * touched / DEVICE.bytes_per_us) for n in ROWS]
    return [
        *(stage(fit.SORT, rows, us) for rows, us in sort),
        *(stage(fit.SELECT, rows, us) for rows, us in select),
        stage("another", 1, 1e9),
    ]


def found_schemes() -> Any:
    return schemes(K, RANKS, splitter_shape(K, RANKS), "local")


def merge(route: str, rows: int, us: float, **changes: Any) -> dict[str, Any]:
    place = {"output": "local", "mode": "graph", "backend": "pynccl", "pieces": 1}
    told = {"route": route, "why": "asked for", "subject": subject(rows), "timing": {"us": us}}
    return {**told, **place, **changes}


def merges() -> list[dict[str, Any]]:
    """As the model has them, and ``auto`` as the best of them."""
    told = []
    for rows in ROWS:
        times = {}
        for scheme in found_schemes():
            chunk = min(rows, scheme.chunk_rows)
            local = scheme.local_us(rows, DEVICE, chunk)
            times[scheme.name] = scheme.exchange_us(rows, LINK, chunk) + local
        vllm = times.pop("vllm")
        told += [merge(name, rows, us) for name, us in times.items()]
        told.append(merge("auto", rows, min(times.values())))
        told.append(merge("seed, unchunked", rows, vllm, why=""))
    return told


def written(path: Path, **changes: Any) -> str:
    report = {
        "schema": 1,
        "collectives": [collective(1 << bit, LINK) for bit in range(10, 28, 2)],
        "stages": stages(),
        "merges": merges(),
        **changes,
    }
    path.write_text(json.dumps(report))
    return str(path)


def test_a_line_is_found_and_never_starts_below_0() -> None:
    line = fit_line([(x, 5 + x / 4) for x in (0.0, 8.0, 1e6)])
    assert line.start == pytest.approx(5)
    assert line.rate == pytest.approx(4)
    assert max(map(abs, line.errors)) < 1e-9
    below = fit_line([(10.0, 1.0), (20.0, 4.0)])
    assert below.start == 0
    assert 1 / below.rate == pytest.approx((10 / 1 + 20 / 4) / (10**2 / 1 + 20**2 / 4**2))


def test_errors_are_relative_so_that_small_sizes_count() -> None:
    """One point in a thousand times the others' time does not drown them."""
    line = fit_line([(1.0, 10.0), (2.0, 10.0), (1e6, 1.2e4)])
    assert line.start == pytest.approx(10, rel=0.05)


def test_links_and_devices_are_found_again() -> None:
    slow = Link("slow", 40.0, 1000.0)
    told = [collective(1 << bit, LINK) for bit in range(10, 24)]
    told += [collective(1 << bit, slow, "eager") for bit in range(10, 24)]
    lines = fit_links(told)
    for mode, link in (("graph", LINK), ("eager", slow)):
        line = lines["pynccl", mode]
        assert (line.start, line.rate) == pytest.approx((link.latency_us, link.bytes_per_us))
    found = fit_device(stages())
    assert found is not None
    sort, select = found
    assert (sort.start, sort.rate) == pytest.approx((DEVICE.sort_us, DEVICE.keys_per_us))
    assert (select.start, select.rate) == pytest.approx((DEVICE.kernel_us, DEVICE.bytes_per_us))
    assert fit_device(stages()[:1]) is None


def test_auto_is_compared_with_the_best_of_the_same_place_alone() -> None:
    told = [
        merge("gather", 32, 50.0),
        merge("splitter", 32, 40.0),
        merge("auto", 32, 50.0),
        merge("auto", 32, 900.0, pieces=64),
        merge("seed, unchunked", 32, 1.0, why=""),
        merge("splitter", 32, 2.0, mode="eager"),
        merge("splitter", 64, 2.0),
        merge("gather", 32, 2.0, output="global"),
        merge("auto", 32, 2.0, output="slots"),
    ]
    ((auto, ratio, best),) = behind(told)
    assert auto is told[2]
    assert ratio == pytest.approx(1.25)
    assert best == "splitter"


def test_the_command_prints_what_cost_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "fit", written(tmp_path / "a.json")]) == 0
    link, device, model, auto = capsys.readouterr().out.strip().split("\n\n")
    assert link == f"{LINK!r}  # off by 0% in the middle, 0% at most"
    assert device.startswith(f"{DEVICE!r}  # sort: off by 0%")
    assert model == "model against 20 merges: off by 0% in the middle, 0% at most"
    assert auto == "auto is within 10% of the best in 5 of 5 cases"


def test_reports_of_several_machines_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stages of one device, collectives and merges of a launch; each may be missing."""
    one = written(tmp_path / "a.json", merges=[], collectives=[])
    other = written(tmp_path / "b.json", stages=[])
    assert main(["bench", "fit", one, other]) == 0
    assert "0% at most" in capsys.readouterr().out
    assert main(["bench", "fit", one]) == 0
    assert "Link" not in capsys.readouterr().out
    assert main(["bench", "fit", other]) == 0
    assert "model against 20 merges" in capsys.readouterr().out


def test_an_auto_that_is_behind_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = [merge("gather", 7, 10.0), merge("auto", 7, 11.5)]
    assert main(["bench", "fit", written(tmp_path / "a.json", merges=merges() + slow)]) == 1
    said = capsys.readouterr().out
    assert "within 10% of the best in 5 of 6 cases, and behind in" in said
    assert said.splitlines()[-1].split()[-4:] == ["11.5", "gather", "1.15", "x"]


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 0}', None])
def test_no_report(text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    assert main(["bench", "fit", str(path)]) == 2
    assert "a.json" in capsys.readouterr().err
