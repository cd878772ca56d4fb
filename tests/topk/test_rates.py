"""Links and devices of one's own: figures by which nothing could be compared are refused."""

import math
from dataclasses import replace
from typing import Any

import pytest

from dcp_comm.errors import CommArgumentError
from dcp_comm.topk.measured import GPU
from dcp_comm.topk.rates import STEPS, Link, Pace

START = [-1.0, math.nan, math.inf, True, "1", None]
RATE = [0, 0.0, -1.0, math.nan, True, "1", None]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("latency_us", value) for value in START),
        *(("bulk_latency_us", value) for value in START if value != math.inf),
        *((name, value) for name in ("bytes_per_us", "bulk_bytes_per_us") for value in RATE),
        ("name", ""),
        ("name", None),
    ],
)
def test_no_link(argument: str, value: Any) -> None:
    given: dict[str, Any] = {"name": "a", "latency_us": 1.0, "bytes_per_us": 2.0, argument: value}
    with pytest.raises(CommArgumentError, match=f"^Link: {argument}: got {value!r}, need a "):
        Link(**given)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("start_us", value) for value in START),
        *(("keys_per_us", value) for value in RATE),
    ],
)
def test_no_pace(argument: str, value: Any) -> None:
    given: dict[str, Any] = {"start_us": 1.0, "keys_per_us": 2.0, argument: value}
    with pytest.raises(CommArgumentError, match=f"^Pace: {argument}: got {value!r}, need a number"):
        Pace(**given)


@pytest.mark.parametrize("step", STEPS)
def test_no_device(step: str) -> None:
    changes: dict[str, Any] = {step: (1.0, 2.0)}
    with pytest.raises(CommArgumentError, match=rf"^Device: {step}: got \(1.0, 2.0\), need a Pace"):
        replace(GPU, **changes)
    with pytest.raises(CommArgumentError, match=r"^Device: name: got ''"):
        replace(GPU, name="")


def test_what_costs_nothing() -> None:
    """Starts of 0, whole numbers and infinite rates are figures."""
    assert Link("free", 0, math.inf).us(10**9) == 0
    assert Link("bulk", 5, 1, 0, math.inf).us(10**9) == 0
    assert Pace(0, math.inf).start_us == 0
