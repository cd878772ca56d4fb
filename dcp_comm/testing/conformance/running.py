"""Running the rules on a live communicator, with a verdict that all its ranks share."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError, DcpCommError, refusal
from dcp_comm.testing.conformance import grouping, living, moving, reducing, refusing
from dcp_comm.testing.conformance.rules import Check, ConformanceFailure

_FAMILIES = (moving, reducing, grouping, refusing, living)
_DETAIL_BYTES = 800

CHECKS: dict[str, Check] = {
    check.__name__: check for family in _FAMILIES for check in family.CHECKS
}
"""Every rule by its name, in the order in which they are best run."""


@dataclass(frozen=True)
class CheckResult:
    """How one rule went, the same verdict on every rank.

    Attributes:
        name: The rule's name in `CHECKS`.
        ok: Whether it held on every rank.
        seconds: How long it took on this rank.
        detail: What was found, and on which rank; empty if it held.
    """

    name: str
    ok: bool
    seconds: float
    detail: str = ""


def run_checks(comm: Communicator, names: Iterable[str] | None = None) -> list[CheckResult]:
    """Run rules one after another; collective, with the same names on every rank.

    A broken rule does not end the run, unless it kills the communicator: then all that follow fail
    too, with its cause.

    Args:
        comm: Alive, of any size, over any backend and device; used but not closed.
        names: Which of `CHECKS`, in this order; all of them if None.

    Raises:
        CommArgumentError: A name is none of `CHECKS`.
    """
    chosen = list(CHECKS) if names is None else list(names)
    for name in chosen:
        if name not in CHECKS:
            need = "one of " + ", ".join(CHECKS)
            raise CommArgumentError(refusal("run_checks", "names", repr(name), need))
    return [run_check(comm, name) for name in chosen]


def run_check(comm: Communicator, name: str) -> CheckResult:
    """Run one rule of `CHECKS`; collective."""
    started = time.perf_counter()
    detail = _agreed(comm, name, _attempt(comm, name))
    return CheckResult(name, not detail, time.perf_counter() - started, detail)


def _attempt(comm: Communicator, name: str) -> str:
    """What went wrong on this rank; empty if nothing did."""
    try:
        comm.check()
        CHECKS[name](comm)
    except ConformanceFailure as failure:
        return str(failure)
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        return f"{comm.where}: {type(error).__name__}: {error}{'; ' if notes else ''}{notes}"
    return ""


def _agreed(comm: Communicator, name: str, detail: str) -> str:
    """Every rank's findings, or why they cannot be had."""
    short = detail.encode("ascii", "replace")[:_DETAIL_BYTES].decode()
    try:
        ranks = comm.agree("verdict", {"check": name}, {"detail": short or "-"})
    except DcpCommError as error:
        return detail or f"{comm.where}: no verdict: {error}"
    return "\n".join(each["detail"] for each in ranks if each["detail"] != "-")
