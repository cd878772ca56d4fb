"""The rules of a communicator as checks that run on a live one: any backend, size and device.

`CHECKS` holds them by name, `run_checks` runs them with one verdict for all ranks. Each raises
`ConformanceFailure` where its rule is broken, under ``python -O`` too, and makes all its calls
before it does, so that its peers are not left waiting. Out-of-tree backends run them in five lines
through `dcp_comm.testing.suite`.
"""

from dcp_comm.testing.conformance.rules import Check, ConformanceFailure
from dcp_comm.testing.conformance.running import CHECKS, CheckResult, run_check, run_checks

__all__ = ["CHECKS", "Check", "CheckResult", "ConformanceFailure", "run_check", "run_checks"]
