"""Allocators under a workspace: growth, failures, misalignment and wrong answers."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dcp_comm.arena import allocate, torch_allocator
from dcp_comm.errors import CommArgumentError
from dcp_comm.workspace import BufferSpec, Workspace
from tests.buffers import Allocator, aligned, raw, state

# Growth


def test_before_the_lock_takes_grow_and_earlier_views_keep_their_bytes() -> None:
    allocator = Allocator()
    workspace = Workspace(allocator=allocator)
    (small,) = workspace.take(raw(100))
    small.fill_(3)
    (large,) = workspace.take(raw(5000))
    large.fill_(4)
    assert small.tolist() == [3] * 100
    assert workspace.take(raw(200))[0].data_ptr() == large.data_ptr()
    assert allocator.asked == [256, 5120]
    assert workspace.nbytes == 5120


def test_the_first_take_allocates_all_that_is_reserved() -> None:
    allocator = Allocator()
    workspace = Workspace(allocator=allocator)
    workspace.reserve(raw(2048), owner="later")
    workspace.take(raw(1))
    workspace.take(raw(2048))
    workspace.lock()
    assert allocator.asked == [2048]


def test_the_new_arena_exists_before_the_old_is_dropped() -> None:  # C22
    blocks: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def allocator(nbytes: int, device: torch.device) -> torch.Tensor:
        alive.append(sum(block() is not None for block in blocks))
        arena = aligned(nbytes)
        assert arena._base is not None
        blocks.append(weakref.ref(arena._base))
        return arena

    workspace = Workspace(allocator=allocator)
    for size in (1, 300, 600):
        workspace.take(raw(size))
    assert alive == [0, 1, 1]
    assert sum(block() is not None for block in blocks) == 1


# Failing allocators


def steps(workspace: Workspace) -> list[Callable[[], object]]:
    """A warm-up in which every call that can allocate does."""
    return [
        lambda: workspace.reserve(raw(300, "a"), owner="one"),
        lambda: workspace.take(raw(300, "a")),
        lambda: workspace.slot(1).take(raw(100, "b")),
        lambda: workspace.slot(1).take(raw(900, "b")),
        lambda: workspace.reserve(raw(2000, "a"), owner="one"),
        workspace.lock,
        lambda: workspace.slot(2).take(raw(2000, "a")),
    ]


def test_an_allocation_that_fails_changes_nothing_and_may_be_retried() -> None:  # C22
    calm = Allocator()
    for step in steps(Workspace(slots=3, allocator=calm)):
        step()
    assert calm.asked == [512, 512, 1024, 2048, 2048, 2048]
    for failing in range(1, len(calm.asked) + 1):
        workspace = Workspace(slots=3, allocator=Allocator(failing))
        failures = []
        for step in steps(workspace):
            before = state(workspace)
            try:
                step()
            except MemoryError as error:
                failures.append(str(error))
                assert state(workspace) == before
                step()
        assert failures == [f"call {failing}"]
        assert workspace.nbytes == 3 * 2048
        assert workspace.locked


def test_a_failed_growth_leaves_the_old_arena_usable() -> None:  # B44b
    workspace = Workspace(allocator=Allocator(2))
    (old,) = workspace.take(raw(256))
    old.fill_(5)
    with pytest.raises(MemoryError):
        workspace.take(raw(257))
    assert workspace.nbytes == 256
    (again,) = workspace.take(raw(256))
    assert again.data_ptr() == old.data_ptr()
    assert again.tolist() == [5] * 256
    assert workspace.take(raw(257))[0].numel() == 257


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_the_lock_takes_all_slots_or_none(failing: int) -> None:
    allocator = Allocator(failing)
    workspace = Workspace(slots=3, allocator=allocator)
    workspace.reserve(raw(512), owner="a")
    with pytest.raises(MemoryError):
        workspace.lock()
    assert not workspace.locked
    assert repr(workspace.slot(0)) == "<WorkspaceSlot slot 0 of 3 on cpu, 0 bytes>"
    workspace.lock()
    addresses = {workspace.slot(index).take(raw(512))[0].data_ptr() for index in range(3)}
    assert len(addresses) == 3
    assert allocator.asked == [512] * (failing + 3)


def test_an_error_between_reserve_and_lock_leaks_no_reservation() -> None:  # C21
    workspace = Workspace()
    workspace.reserve(raw(512, "a"), owner="one")
    before = state(workspace)
    bad: Any = ("a", (1,), torch.int8)
    for wrong in (
        lambda: workspace.reserve(raw(4096), bad, owner="two"),
        lambda: workspace.reserve(raw(4096), owner=""),
        lambda: workspace.reserve([raw(4096)], owner="two"),  # type: ignore[arg-type]
        lambda: workspace.take(raw(4096), bad),
        lambda: workspace.slot(0).take(bad),
    ):
        with pytest.raises(CommArgumentError):
            wrong()
        assert state(workspace) == before
    workspace.lock()
    assert workspace.nbytes == 512


# A caller's allocator


@pytest.mark.parametrize("shift", [0, 1, 16, 255])
def test_a_misaligned_block_is_asked_for_once_more(shift: int) -> None:
    asked: list[int] = []

    def allocator(nbytes: int, device: torch.device) -> torch.Tensor:
        asked.append(nbytes)
        return aligned(nbytes, shift)

    workspace = Workspace(allocator=allocator)
    workspace.reserve(raw(700), raw(1), owner="a")
    workspace.lock()
    views = workspace.take(raw(700), BufferSpec("b", (1,), torch.complex128))
    assert [view.data_ptr() % 256 for view in views] == [0, 0]
    assert asked == ([1024] if shift == 0 else [1024, 1024 + 255])
    assert workspace.nbytes == 1024


def test_an_arena_of_inference_mode_is_a_normal_tensor() -> None:
    with torch.inference_mode():
        arena = allocate(512, torch.device("cpu"), torch_allocator)
    assert not arena.is_inference()
    assert (arena.numel(), arena.data_ptr() % 256) == (512, 0)


def test_a_generous_allocator_is_asked_once() -> None:
    asked: list[int] = []

    def allocator(nbytes: int, device: torch.device) -> torch.Tensor:
        asked.append(nbytes)
        return aligned(nbytes + 4096, 1)

    workspace = Workspace(allocator=allocator)
    assert workspace.take(raw(300))[0].data_ptr() % 256 == 0
    assert (asked, workspace.nbytes) == ([512], 512)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 4096])
def test_torchs_own_memory_is_aligned_whatever_it_returns(size: int) -> None:
    keep = [torch.empty(odd, dtype=torch.uint8) for odd in range(1, 40)]
    workspaces = [Workspace() for _ in keep]
    assert {each.take(raw(size))[0].data_ptr() % 256 for each in workspaces} == {0}


def odd_base() -> torch.Tensor:
    """Bytes whose storage starts at an odd address."""
    array = np.zeros(4096, dtype=np.uint8)
    return torch.from_numpy(array[1 - array.ctypes.data % 2 :])


@pytest.mark.parametrize(
    ("block", "fault"),
    [
        (lambda: None, "a NoneType"),
        (lambda: bytearray(512), "a bytearray"),
        (lambda: torch.empty(512, dtype=torch.int8), "torch.int8"),
        (lambda: torch.empty(2, 256, dtype=torch.uint8), r".*shape \(2, 256\)"),
        (lambda: torch.empty(1024, dtype=torch.uint8)[::2], r".*stride \(2,\)"),
        (lambda: aligned(511), "511 bytes on cpu"),
        (lambda: torch.empty(512, dtype=torch.uint8, device="meta"), "512 bytes on meta"),
        (odd_base, "a storage at address 0x"),
    ],
)
def test_what_an_allocator_may_not_return(block: Callable[[], Any], fault: str) -> None:
    workspace = Workspace(allocator=lambda nbytes, device: block())
    workspace.reserve(raw(500), owner="a")
    before = state(workspace)
    for call in (workspace.lock, lambda: workspace.take(raw(500))):
        with pytest.raises(CommArgumentError, match=f"allocator: got {fault}.*need a 1-D"):
            call()
    assert state(workspace) == before
