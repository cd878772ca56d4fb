"""Small works for ranks of the fake backend, and how they fail."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.errors import DcpCommError
from dcp_comm.testing import run_ranks

Work = Callable[[Communicator], object]


def errors(work: Work, size: int, timeout: float = 60.0) -> list[BaseException | None]:
    """What each rank's work raised, and that the communicator was dead by then."""

    def caught(comm: Communicator) -> BaseException | None:
        try:
            work(comm)
        except DcpCommError as error:
            with pytest.raises(type(error)):
                comm.check()
            return error
        return None

    return run_ranks(caught, size, timeout=timeout)


def full(comm: Communicator, count: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((count,), float(comm.rank), dtype=dtype)


def gather(comm: Communicator, count: int = 3, dtype: torch.dtype = torch.float32) -> list[object]:
    slots = torch.empty(comm.size, count, dtype=dtype)
    comm.all_gather_into(slots, full(comm, count, dtype))
    return slots[:, 0].tolist()
