"""``--share-gpus``: several ranks on one GPU, to see that results are right where GPUs are few.

NCCL takes two ranks on one GPU for a mistake unless it believes that they are on two hosts. Told
so, it goes through sockets of the loopback interface: right, and far too slow to be measured.
"""

import argparse
import os

NOTE = "GPUs are shared: good for correctness only, times mean nothing"


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare the option."""
    parser.add_argument(
        "--share-gpus", action="store_true", help="let ranks share GPUs; for correctness only"
    )


def share_gpus() -> None:
    """Make NCCL take this rank for a host of its own; before it is first used."""
    os.environ.update(
        NCCL_HOSTID=f"dcp-comm-rank-{os.environ['RANK']}",
        NCCL_SOCKET_IFNAME="lo",
        NCCL_IB_DISABLE="1",
    )
