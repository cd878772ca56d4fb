"""Groups within a launch: tensor parallel ranks as several DCP groups, a draft's own beside."""

import pytest

from dcp_comm.communicator import Communicator
from dcp_comm.testing import run_ranks
from tests.groups import WAYS, Member, a_case, merge_side_by_side
from tests.launches import reports


@pytest.mark.parametrize(("output", "strategy"), WAYS)
@pytest.mark.parametrize("draft_size", [1, 2, 8])
def test_eight_ranks_as_two_groups_of_four(draft_size: int, output: str, strategy: str) -> None:
    """TP8/DCP4; the draft's groups are neighbours, each rank alone, or all together."""

    def fn(comm: Communicator) -> tuple[str, str]:
        target, draft = comm.split(comm.rank // 4), comm.split(comm.rank // draft_size)
        assert target is not None
        assert draft is not None
        seed = 20 * (comm.rank // draft_size)
        merge_side_by_side(
            [
                Member(target, a_case(comm.rank // 4, 4, output, strategy)),
                Member(draft, a_case(seed, draft_size, output, strategy)),
            ]
        )
        return target.where, draft.where

    found = run_ranks(fn, 8)
    assert [each for each, _ in found] == [f"rank {r % 4} of 4, backend fake" for r in range(8)]
    assert [each.split(",")[0] for _, each in found] == [
        f"rank {r % draft_size} of {draft_size}" for r in range(8)
    ]


@pytest.mark.parametrize("strided", [False, True])
def test_pairs_may_be_neighbours_or_strided(strided: bool) -> None:
    """Eight ranks as [0, 1], [2, 3] .. or as [0, 4], [1, 5] ..: slot i holds the i-th of a pair."""

    def fn(comm: Communicator) -> int:
        number = comm.rank % 4 if strided else comm.rank // 2
        pair = comm.split(number)
        assert pair is not None
        merge_side_by_side([Member(pair, a_case(number, 2, "local", "gather"))])
        return pair.rank

    assert run_ranks(fn, 8) == ([0] * 4 + [1] * 4 if strided else [0, 1] * 4)


def test_a_group_in_another_order_merges_by_its_own_ranks() -> None:
    """Ranks by falling key: the first of the group holds the first tokens."""

    def fn(comm: Communicator) -> int:
        group = comm.split(0, key=-comm.rank)
        assert group is not None
        merge_side_by_side([Member(group, a_case(3, 4, "global", "gather"))])
        return group.rank

    assert run_ranks(fn, 4) == [3, 2, 1, 0]


@pytest.mark.xdist_group("processes")
def test_four_processes_as_two_pairs_and_a_draft_group_of_three() -> None:
    """Over gloo: the application's own groups, one of them listed backwards, beside a part."""
    told = reports("tests.groups", 4)
    assert set(told) == {f"{output} {strategy}" for output, strategy in WAYS} | {"places"}
    for output, strategy in WAYS:
        assert [each["merges"] for each in told[f"{output} {strategy}"]] == [2, 2, 2, 1]
    assert [each["target"] for each in told["places"]] == [
        f"rank {rank % 2} of 2, backend torch" for rank in range(4)
    ]
    assert [each["draft"] for each in told["places"]] == [
        *(f"rank {rank} of 3, backend torch" for rank in range(3)),
        None,
    ]
