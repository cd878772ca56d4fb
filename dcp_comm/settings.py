"""Every environment variable of this library, read in one place."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from dcp_comm.errors import CommUsageError, refusal

CHECK_LEVELS = ("0", "merge", "all")
KERNELS = ("cuda", "torch")


@dataclass(frozen=True)
class Settings:
    """What the environment asks for; read when a communicator is made, never at import.

    Attributes:
        check: ``DCP_COMM_CHECK``: ``0`` no fingerprints, ``merge`` one a merge, ``all`` one a call;
            empty means ``merge`` on CPU and ``0`` on CUDA.
        debug: ``DCP_COMM_DEBUG=1``: overwrite what nobody may read any more: outputs of calls that
            failed, results of merges that failed, scratch before every merge.
        trace_dir: ``DCP_COMM_TRACE_DIR``: a folder; a communicator that dies writes the last calls
            of its process there, for ``dcp-comm trace``. Empty for nowhere.
        ranges: ``DCP_COMM_RANGES=1``: profiler ranges (record_function, NVTX on CUDA) around calls.
        nccl_library: ``DCP_COMM_NCCL_LIBRARY``: absolute path of the libnccl to load; empty for the
            one that torch brought, else an installed one.
        two_nccl: ``DCP_COMM_TWO_NCCL=1``: do not refuse a process with two different libnccl.
        cache_dir: ``DCP_COMM_CACHE_DIR``: absolute path of the folder that keeps compiled kernels;
            by default ``dcp_comm`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``.
        kernels: ``DCP_COMM_KERNELS``: what does the arithmetic on CUDA: ``cuda`` kernels,
            compiled at run time, or ``torch`` operations; empty for kernels where they can be had.
    """

    check: str = ""
    debug: bool = False
    trace_dir: str = ""
    ranges: bool = False
    nccl_library: str = ""
    two_nccl: bool = False
    cache_dir: str = "~/.cache/dcp_comm"
    kernels: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read and validate.

        Raises:
            CommUsageError: A variable holds a value that means nothing.
        """
        return cls(
            check=_choice(environment, "DCP_COMM_CHECK", CHECK_LEVELS),
            debug=_choice(environment, "DCP_COMM_DEBUG", ("0", "1")) == "1",
            trace_dir=environment.get("DCP_COMM_TRACE_DIR", ""),
            ranges=_choice(environment, "DCP_COMM_RANGES", ("0", "1")) == "1",
            nccl_library=environment.get("DCP_COMM_NCCL_LIBRARY", ""),
            two_nccl=_choice(environment, "DCP_COMM_TWO_NCCL", ("0", "1")) == "1",
            cache_dir=_cache_dir(environment),
            kernels=_choice(environment, "DCP_COMM_KERNELS", KERNELS),
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return every variable that is read."""
        return tuple(f"DCP_COMM_{field.name.upper()}" for field in fields(cls))

    def check_level(self, device_type: str) -> int:
        """0, 1 (merges) or 2 (all calls) on this kind of device."""
        return CHECK_LEVELS.index(self.check or ("merge" if device_type == "cpu" else "0"))


def _choice(environment: Mapping[str, str], name: str, legal: tuple[str, ...]) -> str:
    value = environment.get(name, "")
    if value and value not in legal:
        need = "one of " + ", ".join(legal)
        raise CommUsageError(
            refusal("environment", name, repr(value), need, remedy=f"Unset {name} for its default")
        )
    return value


def _cache_dir(environment: Mapping[str, str]) -> str:
    given = environment.get("DCP_COMM_CACHE_DIR", "")
    if given and not os.path.isabs(given):
        remedy = "Unset DCP_COMM_CACHE_DIR for its default"
        words = refusal(
            "environment", "DCP_COMM_CACHE_DIR", repr(given), "an absolute path", remedy=remedy
        )
        raise CommUsageError(words)
    shared = environment.get("XDG_CACHE_HOME", "")
    in_shared = os.path.join(shared, "dcp_comm") if os.path.isabs(shared) else ""
    return given or in_shared or Settings.cache_dir
