"""What one merge by kernels asks of the host: Python calls, which decide how long it holds it."""

import sys
import threading
from collections import Counter
from types import FrameType

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.kernels.cuda.primitives import CudaPrimitives
from dcp_comm.testing import run_ranks
from dcp_comm.topk import merge
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.result import MergeResult
from tests.kernels.simt.emulator import LITTLE_SHARED
from tests.topk.cases import select_lists

ROWS, K = 4, 64
OURS = ("/dcp_comm/topk/", "/dcp_comm/kernels/")


class Silent:
    """Launches nothing; what was launched is counted."""

    shared_bytes = LITTLE_SHARED

    def __init__(self) -> None:
        self.launched: Counter[str] = Counter()

    def load(self, kernel: str) -> None: ...

    def launch(
        self, kernel: str, grid: tuple[int, int], threads: int, shared: int, *args: int
    ) -> None:
        self.launched[kernel] += 1


def counted(strategy: str, transport: str | None) -> tuple[int, int]:
    """Calls of functions of the merge and its kernels, once warm; and launches."""
    launchers = threading.local()  # ranks are threads

    def kernels(_: torch.device, k: int, size: int, __: int | None) -> CudaPrimitives:
        launchers.own = Silent()
        return CudaPrimitives(launchers.own, k, size)

    def fn(comm: Communicator) -> tuple[int, int]:
        calls = 0
        options = MergeOptions(transport=transport)
        op = TopKMerge(comm, K, ROWS, strategy=strategy, output="local", options=options)
        launcher = launchers.own
        scratch = [torch.zeros(spec.shape, dtype=spec.dtype) for spec in op.specs()]
        scores, out = torch.zeros(ROWS, K), MergeResult.allocate(ROWS, K, "cpu")
        ids = torch.arange(K, dtype=torch.int32).repeat(ROWS, 1)

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event == "call" and any(part in frame.f_code.co_filename for part in OURS)

        op(scores, ids, scratch=scratch, out=out)
        launcher.launched.clear()
        sys.setprofile(count)
        try:
            op(scores, ids, scratch=scratch, out=out)
        finally:
            sys.setprofile(None)
        return calls, launcher.launched.total()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "primitives_for", kernels)
        select_lists(patch)
        return run_ranks(fn, 2)[0]


@pytest.mark.parametrize(
    ("strategy", "transport", "most"),
    [
        ("gather", None, 105),
        ("owner", None, 155),
        ("splitter", "all", 160),
        ("splitter", "owner", 185),
    ],
)
def test_a_merge_makes_few_calls(strategy: str, transport: str | None, most: int) -> None:
    """Fewer than where a check, a layout or an argument is made more than once."""
    calls, launched = counted(strategy, transport)
    assert launched >= 2
    assert calls <= most
