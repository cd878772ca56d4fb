"""The error hierarchy: one base class, one class per kind of answer a caller can give.

Every message reads ``operation: argument: got X, need Y (rank r of w, backend b). Remedy.``
"""


class DcpCommError(RuntimeError):
    """Base of everything this library raises on purpose."""


class CommArgumentError(DcpCommError, ValueError):
    """An argument is wrong; nothing was sent or written, the communicator lives on."""


class CommUsageError(DcpCommError):
    """Legal in itself but not here: no launcher, two threads at once, a forked child."""


class CommMismatch(DcpCommError):
    """The ranks did not agree on what they were doing; names both sides, kills the communicator."""


class CommTimeout(DcpCommError):
    """A deadline passed while peers were awaited; kills the communicator."""


class CommPeerLost(DcpCommError):
    """A peer ended, raised or closed its connection; kills the communicator."""


class CommClosed(DcpCommError):
    """The communicator was closed or aborted before this call."""


class BackendUnavailable(DcpCommError, ImportError):
    """The backend that was asked for cannot work here; the message says why."""


class WorkspaceExhausted(DcpCommError):
    """A request does not fit the reserved arena; names owner, need and have."""


def refusal(
    operation: str,
    argument: str,
    got: object,
    need: object,
    *,
    where: str = "",
    remedy: str = "",
) -> str:
    """Return the one form in which every refusal is worded.

    Args:
        operation: The call that refuses, as the caller spelled it.
        argument: The argument at fault.
        got: What came.
        need: What was needed.
        where: Who refuses, such as ``rank 1 of 4, backend fake``; empty outside a communicator.
        remedy: One sentence that says what to do.
    """
    place = f" ({where})" if where else ""
    advice = f". {remedy}" if remedy else ""
    return f"{operation}: {argument}: got {got}, need {need}{place}{advice}"
