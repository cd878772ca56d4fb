"""Faults to order over gloo: no process dies of one, at any level of ``DCP_COMM_CHECK``."""

import pytest

from tests.faulty_processes import CALL_SECONDS, LEVELS, MISTAKES, ODD, SHORT_SECONDS
from tests.launches import reports
from tests.processes import Report

pytestmark = pytest.mark.xdist_group("processes")

Told = dict[str, list[Report]]


@pytest.fixture(scope="module")
def told() -> Told:
    """Three ranks' reports by topic, of one launch that ended well."""
    return reports("tests.faulty_processes", 3)


def all_struck(found: list[Report]) -> bool:
    """Whether every fault was armed on its rank, and seen there."""
    return all(each["armed"] == each["seen"] for each in found) and found[ODD]["armed"] > 0


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_a_mismatch_on_every_rank(told: Told, mistake: type) -> None:
    found = told[f"{mistake.__name__} at all"]
    for each in found:
        assert (each["error"], each["again"]) == ("CommMismatch", "CommMismatch")
        assert "all_to_all_into float32 x 6" in each["text"]
        assert each["seconds"] < CALL_SECONDS / 2
    assert all_struck(found)


@pytest.mark.parametrize("level", LEVELS[1:])
def test_different_rows_are_a_mismatch_before_the_first_chunk(told: Told, level: str) -> None:
    for each in told[f"rows at {level}"]:
        assert (each["error"], each["again"]) == ("CommMismatch", "CommMismatch")
        assert "merge rows=2" in each["text"]
        assert "merge rows=3" in each["text"]
    assert [each["exchanged"] for each in told[f"exchanged at {level}"]] == [False] * 3


@pytest.mark.parametrize("level", LEVELS)
def test_a_dropped_call_times_out_on_the_others(told: Told, level: str) -> None:
    found = told[f"drop at {level}"]
    for each in found:
        if each["rank"] == ODD:
            assert each["error"] == "list"
        else:
            assert each["error"] in ("CommTimeout", "CommPeerLost")
            assert "all_gather_into" in each["text"]
            assert each["seconds"] < SHORT_SECONDS + 8
            if each["error"] == "CommTimeout":
                assert each["seconds"] >= SHORT_SECONDS
    assert "CommTimeout" in [each["error"] for each in found]
    assert all_struck(found)


@pytest.mark.parametrize("level", LEVELS)
def test_a_rank_that_raises_keeps_its_error_and_the_others_lose_it(told: Told, level: str) -> None:
    found = told[f"raise at {level}"]
    for each in found:
        assert each["seconds"] < CALL_SECONDS / 2
        if each["rank"] == ODD:
            assert each["error"] == "MemoryError"
            assert each["text"].startswith(f"ordered for rank {ODD}, call 1: all_to_all_into")
        else:
            assert each["error"] == each["again"] == "CommPeerLost"
    assert all_struck(found)


@pytest.mark.parametrize("level", LEVELS)
def test_late_ranks_are_waited_for(told: Told, level: str) -> None:
    found = told[f"delay at {level}"]
    for each in found:
        assert each["text"] == str([3.0] * 4 + [0.0] * 6)
        assert each["again"] == "NoneType"
        assert each["started"] + each["seconds"] - found[ODD]["started"] > 0.25
    assert all_struck(found)
    assert found[0]["armed"] == 1
