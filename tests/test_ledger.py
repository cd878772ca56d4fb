"""Logical bytes, by nccl-tests' factors."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcp_comm.contract import Call
from dcp_comm.ledger import FINGERPRINT, Ledger, Traffic

OPS = ["all_gather_into", "all_to_all_into", "reduce_scatter_into", "all_reduce", "broadcast"]


def call(op: str, size: int, block: int) -> Call:
    """A call on blocks of so many bytes."""
    part = torch.empty(block, dtype=torch.uint8)
    whole = torch.empty(size * block, dtype=torch.uint8)
    match op:
        case "all_gather_into":
            return Call(op, whole, part)
        case "reduce_scatter_into":
            return Call(op, part, whole)
        case "all_to_all_into":
            return Call(op, whole.clone(), whole)
        case _:
            return Call(op, whole, whole)


def bus_bytes(op: str, size: int, block: int) -> Fraction:
    """Bytes over the bus by nccl-tests' doc/PERFORMANCE.md: its factor times its size S."""
    total = size * block
    factor = {"all_reduce": Fraction(2 * (size - 1), size), "broadcast": Fraction(size > 1)}
    return factor.get(op, Fraction(size - 1, size)) * total


@given(st.sampled_from(OPS), st.integers(1, 9), st.integers(0, 99))
def test_collectives_count_what_nccl_tests_counts(op: str, size: int, block: int) -> None:
    ledger = Ledger(size)
    ledger.count(call(op, size, block))
    wanted = bus_bytes(op, size, block)
    assert wanted.denominator == 1
    assert ledger.by_op == {op: Traffic(1, int(wanted), int(wanted))}


def test_sends_and_receives_count_on_their_side() -> None:
    ledger, tensor = Ledger(4), torch.empty(3, dtype=torch.float32)
    ledger.count(Call("send", tensor, tensor, peer=1))
    ledger.count(Call("recv", tensor, tensor, peer=1))
    ledger.count(Call("recv", tensor, tensor, peer=2))
    assert ledger.by_op == {"send": Traffic(1, 12, 0), "recv": Traffic(2, 0, 24)}
    assert (ledger.calls, ledger.bytes_sent, ledger.bytes_received) == (3, 12, 24)


def test_fingerprints_stand_apart() -> None:
    ledger = Ledger(4)
    ledger.count_control(64)
    ledger.count(call("all_gather_into", 4, 5))
    assert ledger.by_op[FINGERPRINT] == Traffic(1, 192, 192)
    assert (ledger.calls, ledger.bytes_sent, ledger.bytes_received) == (1, 15, 15)


def test_sums_grow_and_reset() -> None:
    ledger = Ledger(2)
    for _ in range(3):
        ledger.count(call("all_reduce", 2, 7))
    assert (ledger.calls, ledger.bytes_sent) == (3, 3 * 14)
    ledger.reset()
    assert (ledger.calls, ledger.bytes_sent, ledger.by_op) == (0, 0, {})


@pytest.mark.parametrize("op", OPS)
def test_one_rank_alone_moves_nothing(op: str) -> None:
    ledger = Ledger(1)
    ledger.count(call(op, 1, 64))
    assert ledger.by_op == {op: Traffic(1, 0, 0)}
