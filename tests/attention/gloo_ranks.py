"""One rank of `tests.attention.test_lse_merge`: attention and merge over gloo, bit for bit."""

import dcp_comm as dc
from tests.attention.cases import CASES, digest, serve
from tests.processes import report


def main() -> None:
    """Report, case by case, a digest of every bit."""
    with dc.init("torch", "cpu") as comm:
        for topic, case in CASES.items():
            report(topic=topic, digest=digest(serve(comm, case)))
