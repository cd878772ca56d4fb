"""Slots of a workspace, debug mode and reports."""

import gc
import weakref
from typing import Any

import pytest
import torch

from dcp_comm.errors import CommArgumentError, CommUsageError, WorkspaceExhausted
from dcp_comm.workspace import Workspace
from tests.buffers import raw

# Slots


def test_slots_share_no_memory_and_are_all_ready_at_the_lock() -> None:  # B43, B45
    workspace = Workspace(slots=2)
    workspace.take(raw(700))
    workspace.lock()
    assert workspace.nbytes == 2 * 768
    lanes = [workspace.slot(index).take(raw(700))[0] for index in range(2)]
    for number, lane in enumerate(lanes):
        lane.fill_(number)
    assert [set(lane.tolist()) for lane in lanes] == [{0}, {1}]
    assert workspace.take(raw(700))[0].data_ptr() == lanes[0].data_ptr()
    assert workspace.slot(1).take(raw(700))[0].data_ptr() == lanes[1].data_ptr()


def test_growth_of_one_slot_leaves_the_other_where_it_is() -> None:
    workspace = Workspace(slots=2)
    (other,) = workspace.slot(1).take(raw(256))
    workspace.slot(0).take(raw(10_000))
    assert workspace.slot(1).take(raw(256))[0].data_ptr() == other.data_ptr()


def test_a_slot_that_was_never_warmed_names_itself_when_exhausted() -> None:
    workspace = Workspace(slots=2)
    workspace.reserve(raw(256, "a"), owner="merge")
    workspace.lock()
    with pytest.raises(WorkspaceExhausted, match=r"merge: .*\(slot 1 of 2 on cpu\)"):
        workspace.slot(1).take(raw(257, "a"))


@pytest.mark.parametrize("index", [-1, 2, True, 0.0, None])
def test_a_slot_that_does_not_exist_is_refused(index: Any) -> None:
    with pytest.raises(CommArgumentError, match=r"index: got .*, need an int in 0 \.\. 1"):
        Workspace(slots=2).slot(index)


@pytest.mark.parametrize("slots", [0, -1, True, 1.0, None])
def test_a_workspace_has_at_least_one_slot(slots: Any) -> None:
    with pytest.raises(CommArgumentError, match="slots"):
        Workspace(slots=slots)


@pytest.mark.parametrize("device", ["nonsense", "cpu:x", None, 3.5])
def test_a_device_that_cannot_be_used_is_refused(device: Any) -> None:
    with pytest.raises(CommArgumentError, match="Workspace: device: got"):
        Workspace(device)


def test_a_dropped_workspace_frees_its_memory_at_once() -> None:
    workspace = Workspace()
    workspace.take(raw(512))
    arena = weakref.ref(workspace.slot(0)._arena)
    gc.disable()
    try:
        del workspace
        assert arena() is None
    finally:
        gc.enable()


# Debug mode


def test_debug_refuses_a_take_over_views_still_held() -> None:  # B44, C21
    workspace = Workspace(slots=2, debug=True)
    workspace.reserve(raw(512), raw(512), owner="a")
    workspace.lock()
    first, second = workspace.take(raw(512), raw(512))
    with pytest.raises(CommUsageError, match=r"2 view\(s\) still referenced.*Take together"):
        workspace.take(raw(1024))
    del first
    assert workspace.take(raw(512))[0].numel() == 512
    with pytest.raises(CommUsageError, match=r"1 view\(s\)"):
        workspace.take(raw(513))
    assert workspace.slot(1).take(raw(1024))[0].numel() == 1024
    del second
    assert workspace.take(raw(1024))[0].numel() == 1024


def test_debug_refuses_growth_under_a_live_view_too() -> None:  # C21
    workspace = Workspace(debug=True)
    (held,) = workspace.take(raw(256))
    with pytest.raises(CommUsageError, match="still referenced"):
        workspace.take(raw(4096))
    assert workspace.nbytes == 256
    held.fill_(1)
    del held
    assert workspace.take(raw(4096))[0].numel() == 4096


def test_debug_lets_empty_views_live_and_a_full_arena_is_refused_first() -> None:
    workspace = Workspace(debug=True)
    workspace.reserve(raw(256, "a"), owner="one")
    workspace.lock()
    nothing, held = workspace.take(raw(0), raw(256, "a"))
    with pytest.raises(WorkspaceExhausted):
        workspace.take(raw(257))
    del held
    assert workspace.take(raw(256))[0].numel() == 256
    assert nothing.numel() == 0


def test_without_debug_views_are_the_callers_business() -> None:
    workspace = Workspace()
    (held,) = workspace.take(raw(256))
    assert workspace.take(raw(256))[0].data_ptr() == held.data_ptr()


# Reports


def test_the_report_is_a_small_table() -> None:
    workspace = Workspace(slots=2)
    workspace.reserve(raw(1_000_000), owner="topk merge")
    workspace.reserve(raw(1), owner="lse")
    assert str(workspace.report()).splitlines() == [
        "workspace on cpu: 2,000,384 bytes, 2 slot(s), open",
        "  topk merge          1,000,192",
        "  lse                       256",
    ]
    workspace.lock()
    assert repr(workspace) == "<workspace on cpu: 2,000,384 bytes, 2 slot(s), locked>"


def test_a_report_is_a_snapshot_and_cannot_be_written() -> None:
    workspace = Workspace()
    workspace.reserve(raw(1), owner="a")
    report = workspace.report()
    workspace.reserve(raw(1), owner="b")
    assert dict(report.owners) == {"a": 256}
    assert (report.device, report.slots, report.locked) == (torch.device("cpu"), 1, False)
    with pytest.raises(TypeError):
        report.owners["a"] = 0  # type: ignore[index]
    with pytest.raises(AttributeError):
        report.nbytes = 0  # type: ignore[misc]


@pytest.mark.gpu
def test_on_cuda_views_lie_on_the_device_and_torch_sees_only_what_was_reserved() -> None:
    workspace = Workspace("cuda", slots=2)
    torch.cuda.empty_cache()  # a block that others left is given whole
    before = torch.cuda.memory_allocated()
    workspace.reserve(raw(1 << 20), raw(1), owner="a")
    workspace.lock()
    assert torch.cuda.memory_allocated() - before == 2 * ((1 << 20) + 512)
    views = workspace.slot(1).take(raw(1 << 20), raw(1))
    assert torch.cuda.memory_allocated() - before == 2 * ((1 << 20) + 512)
    assert [(view.device, view.data_ptr() % 256) for view in views] == [(workspace.device, 0)] * 2
