"""Ranks as threads that come up over one store as processes do, with real gloo between them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dcp_comm import launch
from dcp_comm.communicator import Communicator
from dcp_comm.deadline import Deadline
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.settings import Settings

Outcome = object | BaseException


@dataclass
class Joiner:
    """How one rank comes up; by default as it should."""

    rank: int
    size: int
    backend: str = "torch"
    device: str = "cpu"
    options: object = None
    settings: Settings = field(default_factory=lambda: Settings(check="all"))


def join(
    joiners: list[Joiner],
    work: Callable[[Communicator], Any] = lambda comm: comm.rank,
    *,
    store: dist.Store | None = None,
    timeout: float = 10.0,
    init_timeout: float = 10.0,
) -> list[Any]:
    """What each joiner's work returned, or what it raised."""
    shared = dist.HashStore() if store is None else store
    outcomes: list[Outcome] = [None] * len(joiners)

    def body(place: int, joiner: Joiner) -> None:
        try:
            meeting = Rendezvous(
                joiner.rank,
                joiner.size,
                shared,
                "threads",
                torch.device(joiner.device),
                timeout,
                Deadline(init_timeout),
                options=joiner.options,
            )
            with launch._connect(joiner.backend, meeting, joiner.settings) as comm:
                outcomes[place] = work(comm)
        except BaseException as error:
            outcomes[place] = error

    threads = [threading.Thread(target=body, args=each, daemon=True) for each in enumerate(joiners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return outcomes


def joiners(size: int, **changes: object) -> list[Joiner]:
    """So many ranks, all alike."""
    return [Joiner(rank, size, **changes) for rank in range(size)]  # type: ignore[arg-type]
