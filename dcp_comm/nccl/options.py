"""NcclOptions: how NCCL is asked to build a communicator, and the struct in which it is asked."""

import ctypes
from dataclasses import dataclass

from dcp_comm.checks import check_int
from dcp_comm.errors import CommArgumentError, refusal
from dcp_comm.nccl.codes import Version, version_text

_MAGIC = 0xCAFEBEEF
_UNSET = -(2**31)
_SPLIT = (2, 18, 0)

# First version of each layout that is mirrored here, and the field with which it ends. NCCL gets
# the newest layout that it knows; announcing its own version with less memory behind it would let
# it read past the end.
_LAYOUTS: tuple[tuple[Version, str], ...] = (
    ((2, 27, 0), "nvlsCTAs"),
    ((2, 26, 0), "trafficClass"),
    ((2, 18, 0), "splitShare"),
    ((2, 17, 0), "netName"),
    ((2, 14, 0), "blocking"),
)


@dataclass(frozen=True)
class NcclOptions:
    """What `init` can ask of NCCL; None leaves a choice to NCCL.

    Attributes:
        min_ctas: Fewest thread blocks that a collective may take.
        max_ctas: Most thread blocks; fewer leave more of the GPU, and of its memory, to others.
        cga_cluster_size: Thread blocks of one cluster, 0 to 8.
        split_share: Whether parts made by `split` use the parent's buffers and threads instead of
            their own. They then also share their fate: a part that must be aborted while work is
            stuck on the GPU takes its relatives along.
        traffic_class: The network traffic class.

    Raises:
        CommArgumentError: A value is out of range.
    """

    min_ctas: int | None = None
    max_ctas: int | None = None
    cga_cluster_size: int | None = None
    split_share: bool | None = True
    traffic_class: int | None = None

    def __post_init__(self) -> None:
        """Check every range."""
        for name, least, most in (
            ("min_ctas", 1, 64),
            ("max_ctas", 1, 64),
            ("cga_cluster_size", 0, 8),
            ("traffic_class", 0, 255),
        ):
            value = getattr(self, name)
            if value is not None:
                check_int("NcclOptions", name, value, least, most)
        if self.split_share not in (None, True, False):
            got = repr(self.split_share)
            raise CommArgumentError(refusal("NcclOptions", "split_share", got, "True, False, None"))


class NcclConfig(ctypes.Structure):
    """ncclConfig_t as far as 2.27 knows it; later versions only append to it."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
        ("trafficClass", ctypes.c_int),
        ("commName", ctypes.c_char_p),
        ("collnetEnable", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("shrinkShare", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
    )


def configuration(options: NcclOptions, name: str, version: Version) -> NcclConfig:
    """Fill in the newest layout that this version of NCCL knows.

    Args:
        options: What was asked for.
        name: The communicator's name, for NCCL's own logs.
        version: Of the loaded library.

    Raises:
        CommArgumentError: An option needs a newer NCCL.
    """
    since, last = next((each for each in _LAYOUTS if version >= each[0]), _LAYOUTS[-1])
    config = NcclConfig(magic=_MAGIC, version=since[0] * 10_000 + since[1] * 100)
    for field, kind, *_ in NcclConfig._fields_[3:]:
        setattr(config, field, _UNSET if kind is ctypes.c_int else None)
    config.size = _size_up_to(last)
    config.blocking, config.commName = 1, name.encode()
    for field, value in _wanted(options, version).items():
        _unless_known(field, version)
        setattr(config, field, int(value))
    return config


def _wanted(options: NcclOptions, version: Version) -> dict[str, int]:
    """The fields that are set, without sharing where there is no ncclCommSplit to share."""
    sharing = options.split_share if version >= _SPLIT else None
    values = {
        "minCTAs": options.min_ctas,
        "maxCTAs": options.max_ctas,
        "cgaClusterSize": options.cga_cluster_size,
        "splitShare": sharing,
        "trafficClass": options.traffic_class,
    }
    return {field: value for field, value in values.items() if value is not None}


def _size_up_to(field: str) -> int:
    word = ctypes.alignment(NcclConfig)
    return -(-(_offset(field) + int(getattr(NcclConfig, field).size)) // word) * word


def _unless_known(field: str, version: Version) -> None:
    first = min(since for since, last in _LAYOUTS if _offset(last) >= _offset(field))
    if version < first:
        need = f"NCCL >= {version_text(first)}"
        remedy = "Leave it out, or use a newer NCCL"
        raise CommArgumentError(refusal("init", field, version_text(version), need, remedy=remedy))


def _offset(field: str) -> int:
    return int(getattr(NcclConfig, field).offset)
