"""Gather a row from every rank: ``torchrun --nproc-per-node 2 examples/first_all_gather.py``."""

import torch

import dcp_comm as dc


def main() -> None:
    """Run on every rank that torchrun started."""
    with dc.init() as comm:  # this local rank's GPU and the best backend there; else the CPU
        mine = torch.arange(3, device=comm.device) + 10 * comm.rank
        everyone = torch.empty(comm.size, 3, dtype=mine.dtype, device=comm.device)
        comm.all_gather_into(everyone, mine)  # rank-major; any dtype, any shape

        if comm.rank == 0:
            print(comm)
            print(everyone.tolist())


if __name__ == "__main__":
    main()
