"""Every kernel on small cases, to be run under ``compute-sanitizer --tool memcheck``.

With PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that each tensor is an allocation of its own. Given the
word ``wrong``, it reads behind one, which has to be seen.
"""

import itertools
import sys

import torch

from dcp_comm.kernels import torch_topk
from dcp_comm.kernels.cuda import local
from dcp_comm.kernels.cuda.launcher import Launcher, cuda_launcher
from dcp_comm.sharding import Shard
from tests.kernels.both import Both, Point
from tests.kernels.checks import CHECKS
from tests.kernels.topk_cases import found, outputs


def main() -> None:
    """Run them."""
    launcher = cuda_launcher(0)
    if "wrong" in sys.argv:
        read_behind(Both(launcher, Point("normal", 64, 2, rows=5), "cuda:0"))
        torch.cuda.synchronize()
        return
    shapes = ((37, 8, 3), (513, 2, 5), (2048, 4, 3), (64, 3, 130), (4096, 1, 2))
    for seed, ((k, size, rows), kind) in enumerate(itertools.product(shapes, ("few", "crowded"))):
        point = Point(kind, k, size, rows, 16, bool(seed % 2), seed=seed)
        for check in CHECKS:
            check(Both(launcher, point, "cuda:0", alone=True))
    for width, k, parts in itertools.product((37, 4099, 9001, 16391), (5, 2048, 4096), (0, 3)):
        find(launcher, torch.randn(2, width, device="cuda").half(), k, parts)
        find(launcher, torch.randn(2, width, device="cuda"), k, parts)
    torch.cuda.synchronize()


def find(launcher: Launcher, logits: torch.Tensor, k: int, parts: int) -> None:
    """Find each row's winners, by so many blocks a row.

    Raises:
        AssertionError: They are not those that torch operations find.
    """
    rows, out = len(logits), outputs(len(logits), k, logits.device)
    scratch = torch.empty(rows, parts, 2 * k + 1, dtype=torch.int64, device=logits.device)
    given = *out, logits, None, None
    local.write_topk(launcher, *given, mask_neg_inf=True, scratch=scratch)
    for got, want in zip(out, found(torch_topk.local_topk, logits, k), strict=True):
        assert torch.equal(got, want)


def read_behind(both: Both) -> None:
    """Pack five rows, of which one has a length."""
    scores, ids = both.scores(64).cuda(), torch.zeros(5, 64, dtype=torch.int32, device="cuda")
    run = torch.empty(5, 64, dtype=torch.int64, device="cuda")
    length = torch.ones(1, dtype=torch.int64, device="cuda")
    both.kernels.pack(run, scores, ids, length, shard=Shard(0, 2), mask_neg_inf=True)


if __name__ == "__main__":
    main()
