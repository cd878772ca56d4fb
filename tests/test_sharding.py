"""Sharding formulas: properties for every deal, and the published rows that went wrong."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm import sharding
from dcp_comm.errors import CommArgumentError
from dcp_comm.sharding import Shard

INT32_MAX = 2**31 - 1
NOT_COUNTS = [True, 1.0, "2", None, torch.tensor(2), 2**31]

quick = settings(deadline=None, max_examples=150)
sizes = st.integers(1, 9)
interleaves = st.sampled_from([1, 2, 3, 4, 16, 64])
positions = st.integers(0, 2**40)


def shards(size: int, interleave: int) -> list[Shard]:
    """Every rank's place in one deal."""
    return [Shard(rank, size, interleave) for rank in range(size)]


@quick
@given(positions, sizes, interleaves)
def test_a_global_position_survives_the_round_trip(g: int, size: int, interleave: int) -> None:
    rank = sharding.owner(g, size=size, interleave=interleave)
    local = sharding.local_index(g, size=size, interleave=interleave)
    assert sharding.global_index(local, rank=rank, size=size, interleave=interleave) == g


@quick
@given(positions, sizes, interleaves, st.data())
def test_a_local_position_survives_the_round_trip(
    j: int, size: int, interleave: int, data: st.DataObject
) -> None:
    shard = Shard(data.draw(st.integers(0, size - 1)), size, interleave)
    g = shard.global_index(j)
    assert (shard.owner(g), shard.local_index(g)) == (shard.rank, j)


@quick
@given(st.integers(0, 300), sizes, interleaves)
def test_the_ranks_partition_every_prefix(length: int, size: int, interleave: int) -> None:
    places = shards(size, interleave)
    owned = [shard.global_index(j) for shard in places for j in range(shard.local_length(length))]
    assert sorted(owned) == list(range(length))


@quick
@given(positions, sizes, interleaves)
def test_local_lengths_sum_and_never_fall(length: int, size: int, interleave: int) -> None:
    now = [shard.local_length(length) for shard in shards(size, interleave)]
    then = [shard.local_length(length + 1) for shard in shards(size, interleave)]
    assert sum(now) == length
    owner = sharding.owner(length, size=size, interleave=interleave)
    assert [after - before for before, after in zip(now, then, strict=True)] == [
        int(rank == owner) for rank in range(size)
    ]


@quick
@given(positions, sizes, interleaves)
def test_global_positions_rise_with_local_ones(j: int, size: int, interleave: int) -> None:
    for shard in shards(size, interleave):
        assert shard.global_index(j) < shard.global_index(j + 1)


@quick
@given(positions, sizes, interleaves)
def test_local_length_is_the_published_formula(length: int, size: int, interleave: int) -> None:
    base = length // interleave // size * interleave
    for shard in shards(size, interleave):
        rest = length - base * size - shard.rank * interleave
        assert shard.local_length(length) == base + min(max(rest, 0), interleave)


@quick
@given(st.lists(st.integers(-5, INT32_MAX), max_size=6), sizes, interleaves)
def test_tensors_agree_with_ints_up_to_the_limit_of_int32(
    values: list[int], size: int, interleave: int
) -> None:
    shard = Shard(size - 1, size, interleave)
    tensor = torch.tensor(values, dtype=torch.int32)
    for function in (shard.owner, shard.local_index, shard.local_length):
        assert function(tensor).tolist() == [function(value) for value in values]
    local, first = shard.local_index(tensor), Shard(0, size, interleave)
    assert first.global_index(local).tolist() == [first.global_index(j) for j in local.tolist()]


@pytest.mark.parametrize("interleave", [1, INT32_MAX])
@pytest.mark.parametrize("size", [1, 2**20, INT32_MAX])
def test_products_beyond_int32_do_not_wrap(size: int, interleave: int) -> None:
    ids = torch.tensor([0, 1, INT32_MAX - 1, INT32_MAX], dtype=torch.int32)
    lowest = torch.tensor([-(2**31), -1, 0, INT32_MAX], dtype=torch.int32)
    shard = Shard(size - 1, size, interleave)
    for function in (shard.owner, shard.local_index, shard.local_length):
        assert function(ids).tolist() == [function(g) for g in ids.tolist()]
    assert shard.local_length(lowest).tolist()[:3] == [0, 0, 0]
    assert shard.local_length(lowest).tolist()[3] == shard.local_length(INT32_MAX)


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32],
)
@pytest.mark.parametrize("shape", [(), (0,), (6,), (2, 3), (1, 3, 2), (3, 0)])
def test_shape_and_dtype_stay_and_the_input_is_untouched(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    values = torch.full(shape, 13, dtype=dtype)
    shard = Shard(1, 3, 2)
    for function in (shard.owner, shard.local_index, shard.global_index, shard.local_length):
        result = function(values)
        assert (result.shape, result.dtype) == (values.shape, dtype)
        assert result.tolist() == torch.full(shape, function(13)).tolist()
        assert values.tolist() == torch.full(shape, 13).tolist()
        assert values.numel() == 0 or result.data_ptr() != values.data_ptr()


def test_strided_and_expanded_tensors_are_read_as_they_lie() -> None:
    table = torch.arange(24, dtype=torch.int32).view(4, 6)
    shard = Shard(1, 2, 2)
    for values in (table[:, ::2], table.t(), table[:1].expand(3, 6)):
        expected = [[shard.local_index(int(g)) for g in row] for row in values]
        assert shard.local_index(values).tolist() == expected


def test_padding_stays_padding() -> None:
    for size in (1, 2, 3):
        shard = Shard(size - 1, size, 2)
        for function in (shard.owner, shard.local_index, shard.global_index):
            assert function(-1) == -1
            assert function(torch.tensor([-1, 4])).tolist() == [-1, function(4)]


def test_one_rank_owns_everything_in_place() -> None:
    shard, ids = Shard(0, 1, 4), torch.arange(-1, 20)
    assert shard.owner(ids).tolist() == [-1] + [0] * 20
    assert shard.local_index(ids).tolist() == ids.tolist()
    assert shard.global_index(ids).tolist() == ids.tolist()
    assert shard.local_length(ids).tolist() == ids.clamp(min=0).tolist()


def test_an_id_beyond_float32_keeps_its_owner() -> None:  # B62
    shard = Shard(1, 2)
    assert shard.global_index(8_388_608) == 16_777_217
    assert shard.owner(torch.tensor([16_777_217], dtype=torch.int32)).tolist() == [1]


def test_speculative_rows_are_localized_one_by_one() -> None:  # B23
    bounds = torch.tensor([8, 9, 10], dtype=torch.int32)
    assert Shard(1, 2).local_length(bounds).tolist() == [4, 4, 5]


def test_ids_written_are_ids_read() -> None:  # B25
    ids = torch.arange(34)
    owners = sharding.owner(ids, size=4, interleave=2)
    seen = []
    for shard in shards(4, 2):
        local = torch.arange(shard.local_length(34))
        mine = shard.global_index(local)
        assert shard.local_index(mine).tolist() == local.tolist()
        assert mine.tolist() == ids[owners == shard.rank].tolist()
        seen += mine.tolist()
    assert sorted(seen) == ids.tolist()


def test_lengths_with_interleave() -> None:  # B28
    lengths = torch.arange(1, 9, dtype=torch.int32)
    assert Shard(0, 4, 2).local_length(lengths).tolist() == [1, 2, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("interleave", "rank", "expected"),
    [(1, 0, [2, 2, 2]), (1, 1, [2, 2, 1]), (3, 0, [3, 2, 1]), (3, 1, [1, 2, 2])],
)
def test_a_chunk_is_the_difference_at_its_bounds(
    interleave: int, rank: int, expected: list[int]
) -> None:  # B29
    bounds = torch.tensor([0, 4, 8, 11], dtype=torch.int32)
    at_bounds = Shard(rank, 2, interleave).local_length(bounds)
    assert (at_bounds[1:] - at_bounds[:-1]).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_a_negative_row_end_counts_as_empty(dtype: torch.dtype) -> None:  # B56
    ends = torch.tensor([-1, 0, 1, 2], dtype=dtype)
    assert Shard(0, 1).local_length(ends).tolist() == [0, 0, 1, 2]
    assert Shard(0, 2).local_length(ends).tolist() == [0, 0, 1, 1]
    assert [Shard(1, 2).local_length(end) for end in (-(2**70), -1, 0, 1, 2)] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("size", [0, -1, *NOT_COUNTS])
def test_a_wrong_size_is_refused(size: Any) -> None:
    for call in (sharding.owner, sharding.local_index):
        with pytest.raises(CommArgumentError, match="size"):
            call(0, size=size)
    with pytest.raises(CommArgumentError, match="size"):
        Shard(0, size)


@pytest.mark.parametrize("interleave", [0, -4, *NOT_COUNTS])
def test_a_wrong_interleave_is_refused(interleave: Any) -> None:
    for call in (sharding.owner, sharding.local_index):
        with pytest.raises(CommArgumentError, match="interleave"):
            call(0, size=2, interleave=interleave)
    with pytest.raises(CommArgumentError, match="interleave"):
        Shard(0, 2, interleave)


@pytest.mark.parametrize("rank", [-1, 2, *NOT_COUNTS])
def test_a_rank_outside_the_group_is_refused(rank: Any) -> None:
    for call in (sharding.global_index, sharding.local_length):
        with pytest.raises(CommArgumentError, match=r"rank: got .*, need an int in 0 \.\. 1"):
            call(0, rank=rank, size=2)
    with pytest.raises(CommArgumentError, match="rank"):
        Shard(rank, 2)


@pytest.mark.parametrize(
    "value",
    [
        True,
        1.0,
        "3",
        None,
        [1, 2],
        torch.tensor(1.0),
        torch.tensor(True),
        torch.tensor(1j),
        torch.tensor(1, dtype=torch.uint64),
    ],
    ids=repr,
)
def test_what_holds_no_integers_is_refused(value: Any) -> None:
    shard = Shard(0, 2)
    for function in (shard.owner, shard.local_index, shard.global_index, shard.local_length):
        with pytest.raises(CommArgumentError, match=function.__name__):
            function(value)


def test_a_shard_is_a_frozen_value() -> None:
    assert Shard(1, 2) == Shard(1, 2, 1)
    assert len({Shard(1, 2, 4), Shard(1, 2, 4), Shard(0, 2, 4)}) == 2
    with pytest.raises(AttributeError):
        Shard(1, 2).rank = 0  # type: ignore[misc]
