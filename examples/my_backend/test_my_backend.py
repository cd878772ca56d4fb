"""The rules of a communicator over this backend; run by pytest where both are installed."""

from dcp_comm.testing.suite import BackendConformance


class TestMyBackend(BackendConformance):
    """Two ranks, in processes of their own."""

    backend = "mine"
    size = 2
