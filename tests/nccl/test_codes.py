"""NCCL's numbers: versions, result codes, dtypes and operations."""

import pytest
import torch

from dcp_comm import contract
from dcp_comm.errors import CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.nccl import codes


@pytest.mark.parametrize(
    ("code", "version"),
    [
        (2408, (2, 4, 8)),
        (2804, (2, 8, 4)),
        (20906, (2, 9, 6)),
        (21003, (2, 10, 3)),
        (21803, (2, 18, 3)),
        (22809, (2, 28, 9)),
        (23003, (2, 30, 3)),
    ],
)
def test_versions_before_and_after_the_change_of_code(code: int, version: codes.Version) -> None:
    assert codes.parse_version(code) == version
    assert codes.version_text(version) == ".".join(map(str, version))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, DcpCommError),
        (2, DcpCommError),
        (3, DcpCommError),
        (4, DcpCommError),
        (5, DcpCommError),
        (6, CommPeerLost),
        (7, CommTimeout),
        (8, CommTimeout),
        (9, DcpCommError),
        (-3, DcpCommError),
        (4711, DcpCommError),
    ],
)
def test_every_code_becomes_an_error_of_ours(code: int, kind: type[DcpCommError]) -> None:
    error = codes.error(code, "all_gather_into", "more\nwords")
    assert type(error) is kind
    assert str(error).startswith(f"all_gather_into: NCCL result {code}, ")
    assert str(error).endswith(": more words")


def test_a_system_error_about_a_connection_is_a_lost_peer() -> None:
    words = "socketProgress: Connection closed by remote peer host<1234>"
    assert type(codes.error(2, "check", words)) is CommPeerLost
    assert type(codes.error(2, "check", "no space left on /dev/shm")) is DcpCommError


def test_long_words_are_cut() -> None:
    assert len(str(codes.error(3, "check", "x" * 10_000))) < 500


def test_every_reduction_that_is_legal_has_codes() -> None:
    assert set(contract.REDUCTIONS) == set(codes.REDUCTIONS)
    reducible = {dtype for dtypes in contract.REDUCTIONS.values() for dtype in dtypes}
    assert reducible == set(codes.DTYPES)
    assert codes.DTYPES[torch.uint8] == codes.BYTES
