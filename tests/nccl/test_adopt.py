"""adopt_nccl before anything moves: whose communicator, and is it the one the caller means."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from dcp_comm.adopt import address_of, adopt_nccl
from dcp_comm.errors import CommArgumentError, CommUsageError
from tests.nccl.conftest import COMM, Stub

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    "given",
    [
        COMM,
        ctypes.c_void_p(COMM),
        SimpleNamespace(comm=COMM),
        SimpleNamespace(comm=ctypes.c_void_p(COMM)),
        SimpleNamespace(_comm_ptr=lambda: COMM),
    ],
    ids=["int", "c_void_p", "object of ints", "object of pointers", "torch"],
)
def test_every_form_gives_the_whole_address(given: object) -> None:
    assert address_of(given, GPU) == COMM


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (0, "null"),
        (-1, "null"),
        (ctypes.c_void_p(), "null"),
        (SimpleNamespace(comm=None), "SimpleNamespace"),
        (True, "bool"),
        (1.5, "float"),
        ("0x7f", "str"),
        (None, "NoneType"),
    ],
)
def test_other_forms_are_refused(given: object, got: str) -> None:
    with pytest.raises(CommArgumentError, match=f"adopt_nccl: comm_pointer: got .*{got}"):
        address_of(given, GPU)


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ((4, 1, 0), "size: got 2, need 4, as NCCL says"),
        ((2, 0, 0), "rank: got 1, need 0, as NCCL says"),
        ((2, 1, 3), "device: got 0, need 3, as NCCL says"),
    ],
)
def test_what_nccl_says_of_the_communicator_must_be_what_the_caller_says(
    stub: Callable[[int], Stub], gpu: torch.device, identity: tuple[int, int, int], words: str
) -> None:
    library = stub(22809)
    library.identify(*identity)
    with pytest.raises(CommArgumentError, match=words):
        adopt_nccl(COMM, 1, 2, gpu)
    assert {"ncclCommDestroy", "ncclCommAbort"}.isdisjoint(library.names)


def test_without_a_place_to_meet_it_is_refused_and_the_communicator_left_alone(
    stub: Callable[[int], Stub], gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = stub(22809)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(CommUsageError, match="adopt_nccl: store: got None, need one"):
        adopt_nccl(COMM, 1, 2, gpu)
    assert library.names == ["ncclCommCount", "ncclCommUserRank", "ncclCommCuDevice"]


@pytest.mark.parametrize(
    ("rank", "size", "device"), [(2, 2, 0), (-1, 2, 0), (0, 0, 0), (True, 2, 0), (0, 2, "cpu")]
)
def test_a_place_that_cannot_be_is_refused(rank: int, size: int, device: int | str) -> None:
    with pytest.raises(CommArgumentError):
        adopt_nccl(COMM, rank, size, device)
