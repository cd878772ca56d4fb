"""What a real libnccl answers on a machine that may have no GPU; prints one JSON object."""

import ctypes
import json
import os
import re
import sys
from pathlib import Path

from dcp_comm.errors import DcpCommError
from dcp_comm.nccl.functions import Functions
from dcp_comm.nccl.library import loaded
from dcp_comm.nccl.options import NcclOptions, configuration


def listeners() -> list[str]:
    """Addresses on which this process listens, in the kernel's hexadecimal."""
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    own = {match[1] for link in links if (match := re.match(r"socket:\[(\d+)\]", link))}
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return [line[1].split(":")[0] for line in lines if line[3] == "0A" and line[9] in own]


def why_no_communicator(nccl: Functions, unique_id: bytes) -> str:
    """The error of making one."""
    try:
        comm = nccl.join(1, unique_id, 0, configuration(NcclOptions(), "alone", nccl.version))
    except DcpCommError as error:
        return f"{type(error).__name__}: {error}"
    return f"made {comm:#x}"


def main(path: str) -> None:
    """Ask everything."""
    nccl = Functions.load(path)
    call, unique_id = nccl.call, nccl.make_id()
    answers = {
        "version": nccl.version,
        "symbols": sorted(call),
        "id": unique_id.hex(),
        "another id": nccl.make_id().hex(),
        "listeners": listeners(),
        "words": [nccl.explain(code) for code in range(9)],
        "group": [call[name]() for name in ("ncclGroupStart", "ncclGroupEnd", "ncclGroupEnd")],
        "null destroy": call["ncclCommDestroy"](None),
        "null abort": call["ncclCommAbort"](None),
        "null gather": call["ncclAllGather"](None, None, 8, 1, None, None),
        "null async": call["ncclCommGetAsyncError"](None, ctypes.byref(ctypes.c_int())),
        "join": why_no_communicator(nccl, unique_id),
        "loaded": loaded(),
    }
    sys.stdout.write(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
