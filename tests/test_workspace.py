"""Workspace: views, reservations and the lock."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.errors import WorkspaceExhausted
from dcp_comm.workspace import BufferSpec, Workspace
from tests.buffers import Allocator, raw, state

DTYPES = sorted(
    {value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str
)


def bounds(view: torch.Tensor) -> tuple[int, int]:
    """First and last-but-one byte address of a contiguous view."""
    return view.data_ptr(), view.data_ptr() + view.nbytes


# Views


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_has_views_of_its_shape(dtype: torch.dtype) -> None:
    views = Workspace().take(*(BufferSpec("a", shape, dtype) for shape in [(3, 5), (), (0, 4)]))
    assert [tuple(view.shape) for view in views] == [(3, 5), (), (0, 4)]
    for view in views:
        assert view.dtype == dtype
        assert view.is_contiguous()
        assert not view.requires_grad
        assert view.data_ptr() % 256 == 0


def test_sizes_around_the_alignment_are_each_rounded() -> None:  # B44b
    workspace = Workspace()
    specs = [raw(size) for size in (1, 255, 256, 257)]
    workspace.reserve(*specs, owner="odd")
    assert workspace.nbytes == 256 + 256 + 256 + 512
    workspace.lock()
    first, *rest = workspace.take(*specs)
    assert [view.data_ptr() - first.data_ptr() for view in rest] == [256, 512, 768]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 1100), max_size=7), st.booleans())
def test_views_of_one_take_lie_apart_in_what_was_reserved(sizes: list[int], locked: bool) -> None:
    workspace = Workspace()
    specs = [raw(size) for size in sizes]
    workspace.reserve(*specs, owner="a")
    assert workspace.nbytes == sum(-(-size // 256) * 256 for size in sizes)
    if locked:
        workspace.lock()
    views = workspace.take(*specs)
    for number, view in enumerate(views):
        view.fill_(number + 1)
    assert all((view == number + 1).all() for number, view in enumerate(views))
    assert workspace.nbytes == sum(-(-size // 256) * 256 for size in sizes)
    spans = sorted(bounds(view) for view in views if view.numel())
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))


def test_every_take_starts_at_offset_0_and_goes_by_bytes() -> None:
    workspace = Workspace()
    workspace.reserve(raw(1024, "a"), owner="one")
    workspace.lock()
    (first,) = workspace.take(BufferSpec("x", (4,), torch.int32))
    first.fill_(-1)
    second, third = workspace.take(raw(16, "y"), BufferSpec("z", (2, 8), torch.float32))
    assert second.data_ptr() == first.data_ptr()
    assert third.data_ptr() == first.data_ptr() + 256
    assert second.tolist() == [255] * 16


def test_equal_takes_return_equal_addresses_without_allocating() -> None:  # B65
    allocator = Allocator()
    workspace = Workspace(allocator=allocator)
    specs = [raw(300), BufferSpec("b", (7, 9), torch.int64)]
    workspace.reserve(*specs, owner="a")
    workspace.lock()
    runs = [[view.data_ptr() for view in workspace.take(*specs)] for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]
    assert allocator.asked == [512 + 512]


def test_nothing_asked_is_nothing_given() -> None:  # C21
    allocator = Allocator()
    workspace = Workspace(slots=2, allocator=allocator)
    empty = BufferSpec("a", (0, 5), torch.float32)
    for _ in range(2):
        assert workspace.take() == ()
        assert [tuple(view.shape) for view in workspace.take(empty, empty)] == [(0, 5), (0, 5)]
        workspace.reserve(empty, owner="idle")
        workspace.reserve(owner="silent")
        workspace.lock()
    assert workspace.nbytes == 0
    assert dict(workspace.report().owners) == {"idle": 0, "silent": 0}
    assert allocator.asked == []


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("reserve_inside", [False, True])
@pytest.mark.parametrize("take_inside", [False, True])
def test_views_work_in_and_out_of_inference_mode(
    dtype: torch.dtype, reserve_inside: bool, take_inside: bool
) -> None:
    spec = BufferSpec("a", (4,), dtype)
    with torch.inference_mode(reserve_inside):
        workspace = Workspace()
        workspace.reserve(spec, owner="a")
        workspace.lock()
    with torch.inference_mode(take_inside):
        (view,) = workspace.take(spec)
        view.fill_(1)
    with torch.inference_mode():
        view.add_(1)
    view.add_(1)
    with torch.no_grad():
        view.add_(1)
    assert view.tolist() == [4] * 4
    assert not view.requires_grad
    assert not view.is_inference()


# Reservations


def test_the_largest_call_counts_over_calls_and_owners() -> None:
    workspace = Workspace()
    workspace.reserve(raw(1000, "a"), raw(24, "b"), owner="prefill")
    assert workspace.nbytes == 1024 + 256
    workspace.reserve(raw(100, "a"), owner="prefill")
    workspace.reserve(raw(512, "c"), owner="decode")
    assert workspace.nbytes == 1280
    workspace.reserve(raw(4096, "c"), owner="decode")
    assert workspace.nbytes == 4096
    assert dict(workspace.report().owners) == {"prefill": 1280, "decode": 4096}


def test_the_seeds_scratch_in_its_own_figures() -> None:
    rows, k, size = 1024, 2048, 4
    packed = BufferSpec("packed", (rows, k, 2), torch.int32)
    gathered = BufferSpec("gathered", (size, rows, k, 2), torch.int32)
    swapped = BufferSpec("swapped", (rows, size, k, 2), torch.int32)
    workspace = Workspace("meta")
    workspace.reserve(packed, gathered, swapped, owner="merge")
    assert workspace.nbytes == (1 + 2 * size) * 8 * rows * k == 144 << 20


@pytest.mark.parametrize(("warm", "limit"), [(8, 1024), (1024, 1024)])
def test_what_was_reserved_for_the_worst_case_serves_every_size(
    warm: int, limit: int
) -> None:  # B42
    def specs(rows: int) -> list[BufferSpec]:
        return [BufferSpec("gathered", (4, min(rows, limit), 16, 2), torch.int32)]

    workspace = Workspace()
    workspace.reserve(*specs(warm), owner="topk merge")
    workspace.lock()
    for rows in (0, 1, warm, warm + 1, limit + 1):
        need, have = 512 * min(rows, limit), 512 * warm
        if need <= have:
            (view,) = workspace.take(*specs(rows))
            assert view.nbytes == need
        else:
            with pytest.raises(
                WorkspaceExhausted, match=rf"topk merge: .*{need} .*{have} .*Reserve"
            ):
                workspace.take(*specs(rows))


def test_decode_reserves_its_own_bound_and_each_owner_shows() -> None:  # B46
    workspace = Workspace()
    workspace.reserve(BufferSpec("logits", (256, 4096), torch.float32), owner="decode")
    workspace.reserve(BufferSpec("logits", (8192, 512), torch.float32), owner="prefill")
    assert dict(workspace.report().owners) == {"decode": 4 << 20, "prefill": 16 << 20}
    assert workspace.nbytes == 16 << 20


def test_scratch_for_one_rank_does_not_serve_four() -> None:  # B48
    def gathered(size: int) -> BufferSpec:
        return BufferSpec("gathered", (size, 64, 8, 2), torch.int32)

    workspace = Workspace()
    workspace.reserve(gathered(1), owner="merge")
    workspace.lock()
    with pytest.raises(WorkspaceExhausted, match=r"merge: got need of 16384 bytes.* 4096 bytes"):
        workspace.take(gathered(4))


def test_taking_together_keeps_what_taking_in_turn_overwrites() -> None:  # B44
    keys, scratch = raw(512, "keys"), raw(1024, "scratch")
    workspace = Workspace()
    workspace.reserve(keys, scratch, owner="prefill")
    workspace.lock()
    held, buffer = workspace.take(keys, scratch)
    held.fill_(7)
    buffer.fill_(9)
    assert held.tolist() == [7] * 512
    workspace.take(scratch)[0].fill_(9)
    assert held.tolist() == [9] * 512


# The lock


def test_after_the_lock_what_fits_is_legal_and_nothing_else() -> None:
    allocator = Allocator()
    workspace = Workspace(allocator=allocator)
    workspace.reserve(raw(1024, "a"), owner="one")
    assert not workspace.locked
    workspace.lock()
    workspace.lock()
    assert workspace.locked
    workspace.reserve(raw(700, "b"), owner="two")
    assert workspace.take(raw(700, "b"))[0].numel() == 700
    before = state(workspace)
    with pytest.raises(WorkspaceExhausted, match=r"reserve: two: got need of 1280 bytes.* 1024 "):
        workspace.reserve(raw(1025, "b"), owner="two")
    with pytest.raises(WorkspaceExhausted, match=r"reserve: three: got need of 1280 bytes"):
        workspace.reserve(raw(1024, "a"), raw(1, "b"), owner="three")
    with pytest.raises(WorkspaceExhausted, match=r"take: one: got need of 1280 bytes.* 1024 "):
        workspace.take(raw(1025, "a"))
    assert state(workspace) == before
    assert dict(workspace.report().owners) == {"one": 1024, "two": 768}
    assert workspace.take(raw(1024, "a"))[0].numel() == 1024
    assert allocator.asked == [1024]


def test_an_exhausted_take_names_every_owner_of_its_specs_or_the_specs() -> None:
    workspace = Workspace()
    for owner in ("draft", "main"):
        workspace.reserve(raw(256, "ids"), raw(256, "scores"), owner=owner)
    workspace.lock()
    with pytest.raises(WorkspaceExhausted, match="take: draft or main: "):
        workspace.take(raw(257, "ids"), raw(256, "scores"))
    with pytest.raises(WorkspaceExhausted, match="take: keys, scales: "):
        workspace.take(raw(512, "keys"), raw(256, "scales"))


def test_a_lock_without_reservations_serves_only_nothing() -> None:
    workspace = Workspace()
    workspace.lock()
    assert workspace.nbytes == 0
    with pytest.raises(WorkspaceExhausted, match=r"256 bytes.* 0 bytes"):
        workspace.take(raw(1))
