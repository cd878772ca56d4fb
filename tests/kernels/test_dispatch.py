"""Which way the local top-K runs, and what is refused."""

from collections.abc import Iterator

import pytest
import torch

from dcp_comm.errors import BackendUnavailable
from dcp_comm.kernels import dispatch, torch_topk
from dcp_comm.kernels.cuda import compiler, local

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NO_COMPILER = "cuda-core 1.0 or newer"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    dispatch.local_topk_for.cache_clear()
    yield
    dispatch.local_topk_for.cache_clear()


@pytest.mark.parametrize(
    ("asked", "device", "k", "lack", "kernels"),
    [
        ("", GPU, 1, "", True),
        ("", GPU, 4096, "", True),
        ("cuda", GPU, 4096, "", True),
        ("", GPU, 4097, "", False),
        ("", GPU, 1, NO_COMPILER, False),
        ("torch", GPU, 1, "", False),
        ("", CPU, 1, "", False),
        ("cuda", CPU, 4097, "", False),
    ],
)
def test_kernels_where_they_can_be_had_and_are_wanted(
    asked: str,
    device: torch.device,
    k: int,
    lack: str,
    kernels: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DCP_COMM_KERNELS", asked)
    monkeypatch.setattr(compiler, "missing", lambda: lack)
    chosen = local.local_topk if kernels else torch_topk.local_topk
    assert dispatch.local_topk_for(device, k) is chosen


@pytest.mark.parametrize(
    ("k", "lack", "need"), [(4097, "", "k up to 4096, not 4097"), (1, NO_COMPILER, NO_COMPILER)]
)
def test_kernels_that_cannot_be_had_are_refused_if_they_were_asked_for(
    k: int, lack: str, need: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DCP_COMM_KERNELS", "cuda")
    monkeypatch.setattr(compiler, "missing", lambda: lack)
    words = rf"local_topk: DCP_COMM_KERNELS: got 'cuda', need {need}. Unset DCP_COMM_KERNELS"
    with pytest.raises(BackendUnavailable, match=words):
        dispatch.local_topk_for(GPU, k)
