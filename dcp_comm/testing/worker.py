"""One rank of a `dcp_comm.testing.pool.RankPool`: brings up a communicator, then runs rules.

Started with torchrun's variables as ``python -m dcp_comm.testing.worker JOBS RESULTS OPTIONS``: two
inherited file descriptors and a JSON object. A job is a line with a rule's name; each is answered
by a line of JSON, and so is the start.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import TextIO

import torch

from dcp_comm.communicator import Communicator
from dcp_comm.launch import init
from dcp_comm.testing.conformance import CheckResult, run_check


def main(jobs_fd: int, results_fd: int, options: dict[str, object]) -> None:
    """Serve until the jobs end."""
    with os.fdopen(jobs_fd) as jobs, os.fdopen(results_fd, "w", buffering=1) as results:
        try:
            comm = _start(**options)  # type: ignore[arg-type]
        except Exception as error:
            where = f"rank {os.environ.get('RANK')}: {type(error).__name__}"
            _answer(results, CheckResult("start", False, 0.0, f"{where}: {error}"))
            return
        with comm:
            _answer(results, CheckResult("start", True, 0.0))
            for job in jobs:
                _answer(results, run_check(comm, job.strip()))


def _start(backend: str, device: str, timeout: float) -> Communicator:
    """Come up on the CPU, or on the local rank's GPU."""
    comm = init(backend, device=None if device == "cuda" else device, timeout=timeout)
    if comm.device.type == "cuda":
        torch.cuda.set_device(comm.device)
    return comm


def _answer(results: TextIO, result: CheckResult) -> None:
    results.write(f"{json.dumps(asdict(result))}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
