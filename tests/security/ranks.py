"""What forked ranks do for the tests of security: a whole life, watched from its first call on."""

import io
import logging
import os
import stat
import sys
from collections.abc import Iterator

import torch

import dcp_comm as dc
from dcp_comm.communicator import Communicator
from tests.processes import report
from tests.scenarios import failure, listeners
from tests.schemes import SCHEMES, merge_of

K, ROWS = 9, 5
CANARY = "canary-5e2f7b1c"
"""In the environment, as a password would be."""
SECRET_INTEGER, SECRET_FLOAT = 987_654_321, 7_654_321.5
"""In the payloads, as a user's tokens would be."""
RUNS_CODE = ("pickle.find_class", "os.system", "os.exec", "subprocess.Popen")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Watch:
    """What a process does, by the interpreter's own audit events."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.bound: list[str] = []
        self.written: set[str] = set()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in RUNS_CODE:
            self.ran.append(f"{event} {arguments[0]!r}")
        elif event == "socket.bind":
            self.bound.append(f"{arguments[1]}")
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
            self.written.add(f"{arguments[0]}")

    def modes(self) -> dict[str, str]:
        """Files that were opened for writing, and who may read them."""
        found = {}
        for path in self.written:
            if os.path.isfile(path):
                found[path] = oct(stat.S_IMODE(os.stat(path).st_mode))
        return found


def life() -> None:
    """Come up, merge by every strategy, split, fail in every way, close, come up again."""
    os.umask(0)
    words = io.StringIO()
    logging.basicConfig(stream=words, level=logging.DEBUG, force=True)
    watch = Watch()
    comm = dc.init("torch", "cpu", timeout=20)
    said = [repr(comm), comm.report(), repr(comm.ledger)]
    for scheme in SCHEMES:
        merge = merge_of(comm, scheme, ROWS)
        scores = torch.full((ROWS, K), SECRET_FLOAT)
        ids = torch.arange(K, dtype=torch.int32).repeat(ROWS, 1)
        merge(scores, ids)
        said += [repr(merge), merge.explain()]
    for secret in (torch.full((4,), SECRET_INTEGER), torch.full((4,), SECRET_FLOAT)):
        comm.all_gather_into(torch.empty(comm.size, 4, dtype=secret.dtype), secret)
    said += failures(comm)
    listening = listeners()
    comm.close()
    with dc.init("torch", "cpu", timeout=20) as again:
        again.barrier()
    report(
        topic="life",
        ran=watch.ran,
        bound=watch.bound,
        listening=listening,
        modes=watch.modes(),
        said=[*said, words.getvalue()],
    )


def failures(comm: Communicator) -> Iterator[str]:
    """The words of errors of every kind, with secrets in all that is handed over."""
    odd = comm.rank == 1
    whole = torch.full((2, comm.size, 4), SECRET_INTEGER)
    yield failure(lambda: comm.all_gather_into(whole[0], whole[1]))["text"]
    yield failure(lambda: comm.all_reduce(whole.double(), "median"))["text"]
    yield failure(lambda: comm.broadcast(whole, 77))["text"]
    merge = dc.TopKMerge(comm, K, ROWS)
    wrong = torch.full((ROWS, K), SECRET_FLOAT, dtype=torch.float64)
    yield failure(lambda: merge(wrong, wrong.int()))["text"]
    for work in (
        lambda part: part.all_reduce(whole[0, 0, : 3 if odd else 4].clone()),
        lambda part: part.agree("test", {"rows": 3 + odd}),
        lambda part: part.abort() if odd else part.barrier(),
    ):
        part = comm.split(0)
        assert part is not None
        yield failure(lambda work=work, part=part: work(part))["text"]  # type: ignore[misc]
        yield failure(part.check)["text"]
        part.close()
