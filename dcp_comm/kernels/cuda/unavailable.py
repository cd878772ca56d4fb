"""Why there are no CUDA kernels here."""

from dcp_comm.errors import BackendUnavailable


class KernelsUnavailable(BackendUnavailable):
    """CUDA kernels cannot be compiled or launched.

    Args:
        need: What they need, and how to get it.

    Attributes:
        need: As given.
    """

    def __init__(self, need: str) -> None:
        super().__init__(f"CUDA kernels: need {need}")
        self.need = need
