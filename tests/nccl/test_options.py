"""NcclOptions and the struct that it becomes, layout by layout."""

import ctypes

import pytest

from dcp_comm.errors import CommArgumentError
from dcp_comm.nccl.codes import Version
from dcp_comm.nccl.options import NcclConfig, NcclOptions, configuration

UNSET = -(2**31)
INTEGERS = [name for name, kind, *_ in NcclConfig._fields_ if kind is ctypes.c_int]


@pytest.mark.parametrize(
    ("version", "size", "announced"),
    [
        ((2, 14, 3), 24, 21400),
        ((2, 17, 1), 40, 21700),
        ((2, 18, 3), 48, 21800),
        ((2, 24, 3), 48, 21800),
        ((2, 26, 2), 48, 22600),
        ((2, 27, 3), 72, 22700),
        ((2, 28, 9), 72, 22700),
        ((2, 32, 3), 72, 22700),
    ],
)
def test_the_layout_is_one_that_this_library_really_has(
    version: Version, size: int, announced: int
) -> None:
    """Its own size and version, never those of a newer NCCL, which would read past the end."""
    config = configuration(NcclOptions(split_share=None), "world", version)
    assert (config.size, config.version, config.magic) == (size, announced, 0xCAFEBEEF)
    assert size <= ctypes.sizeof(NcclConfig)


def test_none_leaves_everything_to_nccl() -> None:
    config = configuration(NcclOptions(split_share=None), "world", (2, 28, 9))
    values = {name: getattr(config, name) for name in INTEGERS}
    assert values.pop("blocking") == 1
    assert set(values.values()) == {UNSET}
    assert (config.netName, config.commName) == (None, b"world")


def test_what_was_asked_for_is_passed_on() -> None:
    options = NcclOptions(1, 4, 2, split_share=False, traffic_class=0)
    config = configuration(options, "world", (2, 28, 9))
    assert (config.minCTAs, config.maxCTAs, config.cgaClusterSize) == (1, 4, 2)
    assert (config.splitShare, config.trafficClass) == (0, 0)


def test_sharing_is_the_default_and_dropped_where_nothing_can_be_split() -> None:
    assert configuration(NcclOptions(), "world", (2, 18, 0)).splitShare == 1
    assert configuration(NcclOptions(), "world", (2, 17, 0)).splitShare == UNSET


@pytest.mark.parametrize(
    ("options", "version", "need"),
    [
        (NcclOptions(traffic_class=3), (2, 24, 3), "2.26.0"),
        (NcclOptions(max_ctas=3), (2, 14, 3), "2.17.0"),
    ],
)
def test_an_option_that_came_later_is_refused(
    options: NcclOptions, version: Version, need: str
) -> None:
    with pytest.raises(CommArgumentError, match=f"need NCCL >= {need}"):
        configuration(options, "world", version)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_ctas": 0},
        {"max_ctas": 65},
        {"max_ctas": True},
        {"cga_cluster_size": 9},
        {"traffic_class": -1},
        {"split_share": "yes"},
    ],
)
def test_values_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(CommArgumentError, match=next(iter(wrong))):
        NcclOptions(**wrong)  # type: ignore[arg-type]
