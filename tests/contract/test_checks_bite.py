"""The rules find what they are there to find: one fault at a time, over the fake backend."""

import subprocess
import sys

import pytest

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.testing import run_ranks
from dcp_comm.testing.conformance import (
    CHECKS,
    CheckResult,
    ConformanceFailure,
    grouping,
    living,
    moving,
    reducing,
    refusing,
    run_checks,
)
from tests.contract import faults
from tests.contract.faults import Faulty, spoil
from tests.processes import ROOT

AFTERWARDS = "an_empty_group_is_legal"

FOUND = [
    (faults.SwapsSlots, "slots_follow_rank_order", "slots: got [[1, 0], [0, 0], [2, 0]]"),
    (faults.SwapsSlots, "gathers_in_place", "bytes differ"),
    (faults.Casts, "outputs_are_stacked_or_joined", "bytes differ"),
    (faults.WritesPastTheEnd, "every_dtype_moves", "memory beside the tensor was written"),
    (faults.WritesPastTheEnd, "all_reduce_is_exact", "memory beside the tensor was written"),
    (faults.WritesBeforeTheStart, "unaligned_slices_move", "memory beside the tensor was written"),
    (faults.WritesToInput, "every_dtype_moves", "input"),
    (faults.WritesToInput, "reduce_scatter_is_exact", "input"),
    (faults.LosesTheOddByte, "odd_byte_counts_move", "1 of 1 bytes differ"),
    (faults.LosesTheOddByte, "large_tensors_move", "bytes differ, the first at byte 1048578"),
    (faults.IgnoresTheRoot, "broadcasts_come_from_every_root", "broadcast torch.int16 () root 1"),
    (faults.SumsAnyway, "all_reduce_is_exact", "all_reduce prod"),
    (faults.SumsAnyway, "reduce_scatter_is_exact", "reduce_scatter_into prod"),
    (faults.ReducesInFloat, "nothing_is_narrowed", "max of torch.int32"),
    (faults.DeliversTheCallBefore, "slots_follow_rank_order", "slots: got"),
    (faults.OnlyOnRankOne, "slots_follow_rank_order", "rank 1 of 3"),
]


def checked(comm: Communicator, fault: type[Faulty], *names: str) -> list[CheckResult]:
    return run_checks(spoil(comm, fault), names)


@pytest.mark.parametrize(("fault", "name", "words"), FOUND)
def test_a_fault_is_found_by_its_rule_and_the_run_goes_on(
    fault: type[Faulty], name: str, words: str
) -> None:
    for spoilt, harmless in run_ranks(checked, 3, fault, name, AFTERWARDS):
        assert not spoilt.ok
        assert words in spoilt.detail
        assert (harmless.ok, harmless.detail) == (True, "")


@pytest.mark.parametrize(
    ("fault", "name", "words"),
    [
        (faults.OneByOne, "all_pairs_talk_at_once", "CommMismatch"),
        (faults.ReversesParts, "a_split_orders_by_key_then_rank", "slot order"),
    ],
)
def test_a_fatal_fault_fails_what_follows_too(fault: type[Faulty], name: str, words: str) -> None:
    for results in run_ranks(checked, 3, fault, name, AFTERWARDS):
        assert [result.ok for result in results] == [False, False]
        assert all(words in result.detail for result in results)


def test_a_barrier_that_does_not_wait_is_found() -> None:
    def deaf(comm: Communicator) -> list[CheckResult]:
        comm._channel.control = faults.Deaf(comm.size)
        return run_checks(comm, ["a_barrier_waits_for_the_last", "agreement_tells_everyone"])

    assert not any(result.ok for results in run_ranks(deaf, 2) for result in results)


def test_without_a_fault_every_rule_holds_on_every_rank() -> None:
    for results in run_ranks(checked, 3, Faulty):
        assert results == []
    for results in run_ranks(lambda comm: run_checks(spoil(comm, Faulty)), 3):
        assert [result.name for result in results] == list(CHECKS)
        assert [result.detail for result in results if not result.ok] == []


def test_every_rule_is_in_the_table() -> None:
    for family in (moving, reducing, grouping, refusing, living):
        rules = [name for name, value in vars(family).items() if hasattr(value, "__wrapped__")]
        own = [name for name in rules if vars(family)[name].__module__ == family.__name__]
        assert sorted(check.__name__ for check in family.CHECKS) == sorted(own)
        assert set(own) <= set(CHECKS)
    assert all(check.__doc__ for check in CHECKS.values())


def test_unknown_names_are_refused() -> None:
    with pytest.raises(CommArgumentError, match=r"run_checks: names: got 'nonsense', need one of"):
        run_ranks(run_checks, 2, ["nonsense"])


def test_a_rule_alone_raises_an_assertion_error() -> None:
    def slots(comm: Communicator) -> None:
        CHECKS["slots_follow_rank_order"](spoil(comm, faults.SwapsSlots))

    with pytest.raises(ConformanceFailure, match=r"rank \d of 2, backend fake: slots: got"):
        run_ranks(slots, 2)
    assert issubclass(ConformanceFailure, AssertionError)


def test_rules_bite_without_assertions_too() -> None:
    code = (
        "from dcp_comm.testing import conformance, run_ranks\n"
        "from tests.contract.faults import SwapsSlots, spoil\n"
        "names = ['slots_follow_rank_order', 'every_dtype_moves']\n"
        "run = lambda comm: conformance.run_checks(spoil(comm, SwapsSlots), names)\n"
        "raise SystemExit(40 + sum(not each.ok for each in run_ranks(run, 2)[0]))\n"
    )
    assert (
        subprocess.run([sys.executable, "-O", "-c", code], cwd=ROOT, check=False).returncode == 42
    )
