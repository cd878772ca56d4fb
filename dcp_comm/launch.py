"""To a Communicator: `init` under torchrun, `from_process_group` inside an application."""

from dataclasses import replace

import torch
import torch.distributed as dist

from dcp_comm import agreement, bootstrap, registry
from dcp_comm.agreement import Fields
from dcp_comm.backend import Backend, SoloBackend
from dcp_comm.bootstrap import Launch
from dcp_comm.communicator import Communicator
from dcp_comm.control import Control, GlooControl, SoloControl
from dcp_comm.deadline import Deadline, seconds
from dcp_comm.errors import BackendUnavailable, CommArgumentError, CommUsageError, refusal
from dcp_comm.footprint import Footprint
from dcp_comm.processes import own_process
from dcp_comm.rendezvous import Rendezvous
from dcp_comm.settings import Settings


def init(
    backend: str = "auto",
    device: torch.device | str | None = None,
    timeout: float = 30.0,
    init_timeout: float = 60.0,
    *,
    name: str = "world",
    options: object | None = None,
) -> Communicator:
    """Make a communicator of all ranks that a launcher such as torchrun started; collective.

    Needs RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Never calls
    ``init_process_group``. Where the launcher runs a store, this connects to it; otherwise rank 0
    listens on MASTER_ADDR alone. The ranks agree on world size, places, backend and library version
    before they connect, and fail together with a table.

    Args:
        backend: A name from `list_backends`, or ``auto``, which rank 0 decides.
        device: Where tensors will live; None for the local rank's GPU, else the CPU.
        timeout: Seconds that one call may wait for peers; finite, above 0.
        init_timeout: Seconds that coming up may take in all.
        name: The communicator's name, the same on every rank.
        options: What the backend shall do differently, the same on every rank, such as
            `NcclOptions` for "pynccl"; None for its defaults.

    Raises:
        CommUsageError: No launcher, rank 0 cannot listen, or two ranks share a GPU.
        CommArgumentError: An argument is wrong.
        BackendUnavailable: The backend cannot work on some rank; says where and why.
        CommMismatch: The ranks differ in something that they must agree on.
        CommTimeout: Not all ranks came; says which.
    """
    settings, launch = Settings.from_environment(), Launch.from_environment()
    timeout = seconds(timeout, "init", "timeout")
    deadline = Deadline(seconds(init_timeout, "init", "init_timeout"))
    where = launch.device() if device is None else _usable(device)
    if launch.size == 1:
        return _alone(backend, where, name, timeout, settings, options)
    store, name = bootstrap.enter(
        bootstrap.open_store(launch, deadline), name, launch.rank, deadline
    )
    meeting = Rendezvous(
        launch.rank, launch.size, store, name, where, timeout, deadline, options=options
    )
    return _connect(backend, meeting, settings)


def from_process_group(
    group: dist.ProcessGroup | None = None,
    backend: str = "auto",
    device: torch.device | str | None = None,
    timeout: float = 30.0,
    init_timeout: float = 60.0,
    *,
    options: object | None = None,
) -> Communicator:
    """Make a communicator of an application's torch process group; collective over the group.

    The backend "torch" rides on the group itself; others use it to find one another. The group is
    never destroyed, and must not be destroyed while the communicator lives.

    Args:
        group: The group; None for torch's default group.
        backend: A name from `list_backends`; ``auto`` rides on a group that moves this device's
            tensors itself, and otherwise leaves it to the group's rank 0.
        device: Where tensors will live; None for the current GPU in an nccl group, else the CPU.
        timeout: Seconds that one call may wait for peers; finite, above 0.
        init_timeout: Seconds that coming up may take in all.
        options: As `init`.

    Raises:
        CommUsageError: torch.distributed is not initialised, this rank is not in the group, or two
            ranks share a GPU.
        CommArgumentError, BackendUnavailable, CommMismatch, CommTimeout: As `init`.
    """
    settings = Settings.from_environment()
    timeout = seconds(timeout, "from_process_group", "timeout")
    deadline = Deadline(seconds(init_timeout, "from_process_group", "init_timeout"))
    found = _member_group(group)
    where = _device_of(found) if device is None else _usable(device)
    if found.size() == 1:
        return _alone(backend, where, found.group_name, timeout, settings, options)
    rank, size = found.rank(), found.size()
    store, name = bootstrap.enter(bootstrap.group_store(found), found.group_name, rank, deadline)
    meeting = Rendezvous(rank, size, store, name, where, timeout, deadline, found, options)
    return _connect(backend, meeting, settings)


def _alone(
    backend: str,
    device: torch.device,
    name: str,
    timeout: float,
    settings: Settings,
    options: object | None,
) -> Communicator:
    """One rank needs no library; but what more ranks would refuse, it refuses too."""
    chosen = registry.automatic(device) if backend == "auto" else backend
    asked = registry.load(chosen)
    _unless_options_fit(asked, options)
    unfit = _unfit(asked, device)
    if unfit:
        raise BackendUnavailable(f"init: {unfit}")
    meeting = Rendezvous(0, 1, dist.HashStore(), name, device, timeout, Deadline(timeout))
    return Communicator(SoloBackend(chosen, device), SoloControl(), meeting, settings)


def _connect(requested: str, meeting: Rendezvous, settings: Settings) -> Communicator:
    """Agree, connect, verify; what fails on one rank is told to all, and leaves nothing open."""
    control: Control | None = None
    backend: Backend | None = None
    try:
        chosen, processes = _choose(requested, meeting)
        meeting = replace(meeting, processes=processes)
        control = GlooControl.connect(meeting)
        footprint = Footprint(meeting.device)
        with footprint.stage("connect"):
            backend = registry.load(chosen).connect(meeting)
            comm = Communicator(backend, control, meeting, settings, footprint)
            comm.verify_order()
        return comm
    except BaseException as error:
        if backend is not None:
            backend.abort()
        if control is not None:
            control.close()
        bootstrap.tell(meeting, error)
        raise


def _choose(requested: str, meeting: Rendezvous) -> tuple[str, tuple[str, ...]]:
    """Return the backend that all ranks will use and each rank's process.

    Raises on every rank, with a table.
    """
    fields = {
        "backend": requested,
        "device": meeting.device.type,
        "options": repr(meeting.options),
    }
    choice = _rank_zero_choice(requested, meeting)
    own = {"choice": choice, "process": own_process()}
    ranks = bootstrap.meet(meeting, "membership", {**fields, **own})
    agreement.compare("init", ranks, may_differ=("rank", "token", *own))
    chosen, processes = ranks[0]["choice"], tuple(each["process"] for each in ranks)
    ranks = bootstrap.meet(meeting, "backend", {"name": chosen, **_abilities(chosen, meeting)})
    if any(fields["missing"] != "-" for fields in ranks):
        reasons = agreement.table(ranks, ["missing"])
        raise BackendUnavailable(f"init: backend {chosen} cannot work on every rank\n{reasons}")
    agreement.compare("init", ranks, may_differ=("rank", "token", "exclusive"))
    _unless_apart(ranks)
    return chosen, processes


def _abilities(chosen: str, meeting: Rendezvous) -> dict[str, str]:
    """What this rank can bring to the chosen backend, or why it cannot."""
    missing = _why_not(chosen, meeting.device)
    if missing:
        return {"library": "", "exclusive": "-", "missing": missing[:500]}
    backend = registry.load(chosen)
    _unless_options_fit(backend, meeting.options)
    return {
        "library": backend.library(meeting.device),
        "exclusive": backend.exclusive(meeting.device) or "-",
        "missing": "-",
    }


def _unless_options_fit(backend: type[Backend], options: object | None) -> None:
    wanted = backend.options_type
    if options is not None and (wanted is None or not isinstance(options, wanted)):
        need = "None" if wanted is None else f"{wanted.__name__} or None"
        remedy = f"Backend {backend.name} takes {'no options' if wanted is None else 'these'}"
        raise CommArgumentError(
            refusal("init", "options", type(options).__name__, need, remedy=remedy)
        )


def _unless_apart(ranks: list[Fields]) -> None:
    """Refuse two ranks that need the same thing for themselves alone; on every rank."""
    seen: dict[str, int] = {}
    for rank, fields in enumerate(ranks):
        place = fields["exclusive"]
        if place != "-" and place in seen:
            raise CommUsageError(
                f"init: ranks {seen[place]} and {rank} are both on {place}. Give each rank a GPU "
                "of its own; to share one for tests, start every rank with another NCCL_HOSTID, "
                "and with NCCL_SOCKET_IFNAME=lo and NCCL_IB_DISABLE=1"
            )
        seen[place] = rank


def _rank_zero_choice(requested: str, meeting: Rendezvous) -> str:
    if requested == "auto":
        return _automatic(meeting) if meeting.rank == 0 else "auto"
    registry.require_known(requested)
    return requested


def _automatic(meeting: Rendezvous) -> str:
    """Ride on a given group that can move the device's tensors; a second one costs GPU memory."""
    if meeting.group is not None:
        on_gpu = "nccl" in dist.get_backend(meeting.group)
        if on_gpu or meeting.device.type == "cpu":
            return "torch"
    return registry.automatic(meeting.device)


def _why_not(name: str, device: torch.device) -> str:
    try:
        backend = registry.load(name)
    except BackendUnavailable as error:
        return str(error)
    return _unfit(backend, device) or backend.unavailable()


def _unfit(backend: type[Backend], device: torch.device) -> str:
    """Why a backend is not for this device or for processes, whatever is installed."""
    if device.type not in backend.capabilities.devices:
        return f"backend {backend.name} does not move {device.type} tensors"
    if not backend.capabilities.processes:
        return f"backend {backend.name} takes threads for ranks: use dcp_comm.testing.run_ranks"
    return ""


def _member_group(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    found = dist.group.WORLD if group is None else group
    if found is None:
        raise CommUsageError(
            "from_process_group: torch.distributed is not initialised. Call init_process_group "
            "first, or use dcp_comm.init under torchrun"
        )
    if not isinstance(found, dist.ProcessGroup):
        raise CommUsageError(
            refusal(
                "from_process_group",
                "group",
                "no group, as new_group gives ranks outside it",
                "a process group that this rank belongs to",
                remedy="Call it on the group's members only",
            )
        )
    return found


def _device_of(group: dist.ProcessGroup) -> torch.device:
    on_gpu = "nccl" in dist.get_backend(group) and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _usable(device: torch.device | str) -> torch.device:
    """Return the device that was asked for, with its index.

    Raises:
        CommArgumentError: This torch knows no such device, or sees none.
    """
    try:
        found = torch.device(device)
        if found.type == "cuda" and found.index is None:
            return torch.device("cuda", torch.cuda.current_device())
    except (AssertionError, RuntimeError, TypeError) as error:
        need = "a device that torch can use here, such as cpu or cuda:0"
        text = refusal("init", "device", repr(device), need, remedy="None takes the best one")
        raise CommArgumentError(text) from error
    return found
