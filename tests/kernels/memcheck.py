"""Every kernel on small cases, to be run under ``compute-sanitizer --tool memcheck``.

With PYTORCH_NO_CUDA_MEMORY_CACHING=1, so that each tensor is an allocation of its own. Given the
word ``wrong``, it reads behind one, which has to be seen.
"""

import itertools
import sys

import torch

from dcp_comm.kernels.cuda.launcher import cuda_launcher
from dcp_comm.sharding import Shard
from tests.kernels.both import Both, Point
from tests.kernels.checks import CHECKS


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
    torch.cuda.synchronize()


def read_behind(both: Both) -> None:
    """Pack five rows, of which one has a length."""
    scores, ids = both.scores(64).cuda(), torch.zeros(5, 64, dtype=torch.int32, device="cuda")
    run = torch.empty(5, 64, dtype=torch.int64, device="cuda")
    length = torch.ones(1, dtype=torch.int64, device="cuda")
    both.kernels.pack(run, scores, ids, length, shard=Shard(0, 2), mask_neg_inf=True)


if __name__ == "__main__":
    main()
