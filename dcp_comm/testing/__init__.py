"""For tests: many ranks in one process."""

from dcp_comm.testing.ranks import run_ranks

__all__ = ["run_ranks"]
