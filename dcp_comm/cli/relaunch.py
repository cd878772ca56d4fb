"""From one process to many: the command starts itself again under torchrun, on this machine alone.

torchrun's agent runs in this process. It passes signals on to the ranks and ends them when one
fails; what it would say about that on top of the ranks' own words is left out.
"""

import logging
import os
import sys
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_QUIET = "ignore:Failed to initialize NumPy:UserWarning"
"""torch says so at import where NumPy is not installed; nothing here needs it."""


def is_launched() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def relaunch(words: Sequence[str], ranks: int) -> int:
    """Run ``python -m dcp_comm`` with these words on ``ranks`` ranks; return its exit code.

    A rank that a signal ended counts as 128 + the signal's number, as in a shell.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("PYTHONWARNINGS", _QUIET)
    logging.disable(logging.CRITICAL)
    try:
        run.main([*_launcher_options(ranks), "-m", "dcp_comm", *words])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            print(f"dcp-comm: rank {rank}: {failure.message}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    finally:
        logging.disable(logging.NOTSET)
    return 0


def _launcher_options(ranks: int) -> tuple[str, ...]:
    """Return options for one machine; port 0 has the launcher find a free one itself."""
    return (
        f"--nproc-per-node={ranks}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
    )
