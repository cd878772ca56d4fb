"""What pynccl makes of checked calls: which functions, in which order, with which numbers."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from dcp_comm.backends.pynccl import PyNcclBackend
from dcp_comm.contract import Call
from dcp_comm.deadline import Deadline
from dcp_comm.errors import CommClosed, CommPeerLost, CommTimeout, DcpCommError
from dcp_comm.nccl.options import NcclOptions
from tests.nccl.conftest import COMM, PART, STREAM, Connect, Stub, issue, meeting


def hexed(tensor: torch.Tensor, offset: int = 0) -> str:
    return hex(tensor.data_ptr() + offset)


def test_the_id_and_the_place_reach_nccl_whole(connect: Connect) -> None:
    """128 bytes by value, all of them above 0x7F; a blocking communicator."""
    _, library = connect()
    first, second = library.history
    assert first == "ncclGetUniqueId"
    assert second.startswith("ncclCommInitRankConfig 2 0 id:1 config: 72 cafebeef 22700 1 ")


def test_moving_calls_move_bytes(connect: Connect) -> None:
    """Addresses and communicators beyond 32 bits arrive whole."""
    backend, library = connect()
    wide, part = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    issue(backend, Call("all_gather_into", wide, part))
    issue(backend, Call("all_to_all_into", torch.zeros_like(wide), wide))
    issue(backend, Call("broadcast", part, part, peer=1))
    issue(backend, Call("send", part, part, peer=1))
    issue(backend, Call("recv", part, part, peer=1))
    end = f"{COMM:#x} {STREAM:#x}"
    gather, exchange, broadcast, send, recv = library.history[2:]
    assert gather == f"ncclAllGather {hexed(part)} {hexed(wide)} 24 1 {end}"
    assert exchange.endswith(f" 24 1 {end}")
    assert exchange.startswith("ncclAlltoAll ")
    assert broadcast == f"ncclBroadcast {hexed(part)} {hexed(part)} 24 1 1 {end}"
    assert send == f"ncclSend {hexed(part)} 24 1 1 {end}"
    assert recv == f"ncclRecv {hexed(part)} 24 1 1 {end}"


@pytest.mark.parametrize(
    ("dtype", "op", "codes"),
    [(torch.bfloat16, "avg", "9 4"), (torch.int64, "max", "4 2"), (torch.float32, "sum", "7 0")],
)
def test_reductions_name_dtype_and_operation(
    connect: Connect, dtype: torch.dtype, op: str, codes: str
) -> None:
    backend, library = connect()
    whole, part = torch.zeros(2, 5, dtype=dtype), torch.zeros(5, dtype=dtype)
    issue(backend, Call("all_reduce", whole, whole, reduce=op))
    issue(backend, Call("reduce_scatter_into", part, whole, reduce=op))
    end = f"{COMM:#x} {STREAM:#x}"
    assert library.history[2:] == [
        f"ncclAllReduce {hexed(whole)} {hexed(whole)} 10 {codes} {end}",
        f"ncclReduceScatter {hexed(whole)} {hexed(part)} 5 {codes} {end}",
    ]


class Vast:
    """A tensor of more than 2^32 bytes that needs none."""

    dtype = torch.int64

    def numel(self) -> int:
        return (1 << 33) + 1

    def data_ptr(self) -> int:
        return 0x7F00_0000_0010

    @property
    def nbytes(self) -> int:
        return 8 * self.numel()


def test_counts_beyond_32_bits_arrive_whole(connect: Connect) -> None:
    backend, library = connect()
    vast: torch.Tensor = Vast()  # type: ignore[assignment]
    issue(backend, Call("all_gather_into", vast, vast))
    issue(backend, Call("all_reduce", vast, vast, reduce="sum"))
    assert library.history[2].split()[3] == str(8 * ((1 << 33) + 1))
    assert library.history[3].split()[3] == str((1 << 33) + 1)


def test_an_old_nccl_exchanges_by_pairs_in_one_group(connect: Connect) -> None:
    """Block d goes to rank d and block s comes from rank s, this rank's own too."""
    backend, library = connect(22703)
    output, input = torch.zeros(2, 4, dtype=torch.uint8), torch.ones(2, 4, dtype=torch.uint8)
    issue(backend, Call("all_to_all_into", output, input))
    end = f"{COMM:#x} {STREAM:#x}"
    assert library.history[2:] == [
        "ncclGroupStart",
        f"ncclSend {hexed(input)} 4 1 0 {end}",
        f"ncclRecv {hexed(output)} 4 1 0 {end}",
        f"ncclSend {hexed(input, 4)} 4 1 1 {end}",
        f"ncclRecv {hexed(output, 4)} 4 1 1 {end}",
        "ncclGroupEnd",
    ]


def test_several_calls_are_one_group(connect: Connect) -> None:
    backend, library = connect()
    tensor = torch.zeros(4)
    issue(backend, Call("send", tensor, tensor, peer=1), Call("recv", tensor, tensor, peer=1))
    assert library.names[2:] == ["ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"]


def test_a_group_is_ended_whatever_happens_inside(connect: Connect) -> None:
    """NCCL counts groups by thread: one left open would swallow all later calls."""
    backend, library = connect()
    tensor = torch.zeros(4)
    library.fail("ncclRecv", 4)
    with pytest.raises(DcpCommError, match=r"send \+ recv: NCCL result 4"):
        issue(backend, Call("send", tensor, tensor, peer=1), Call("recv", tensor, tensor, peer=1))
    assert library.names[-1] == "ncclGroupEnd"


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 8, 77])
def test_every_result_code_of_a_call_is_raised(connect: Connect, code: int) -> None:
    backend, library = connect()
    library.fail("ncclAllReduce", code)
    tensor = torch.zeros(4)
    with pytest.raises(DcpCommError, match=rf"all_reduce: NCCL result {code},.*went wrong last"):
        issue(backend, Call("all_reduce", tensor, tensor, reduce="sum"))


def test_a_communicator_that_is_not_blocking_is_polled(connect: Connect) -> None:
    """Which only an application can hand us: "in progress" five times, then done."""
    backend, library = connect()
    library.fail("ncclAllReduce", 7)
    library.report(0, after=5)
    tensor = torch.zeros(4)
    issue(backend, Call("all_reduce", tensor, tensor, reduce="sum"))
    library.report(6, after=3)
    with pytest.raises(CommPeerLost):
        issue(backend, Call("all_reduce", tensor, tensor, reduce="sum"))
    library.report(0, after=1_000_000)
    with pytest.raises(CommTimeout, match="still in progress"):
        issue(backend, Call("all_reduce", tensor, tensor, reduce="sum"))


@pytest.mark.parametrize(("code", "kind"), [(6, CommPeerLost), (3, DcpCommError)])
def test_check_asks_for_the_asynchronous_error(
    connect: Connect, code: int, kind: type[DcpCommError]
) -> None:
    backend, library = connect()
    backend.check()
    library.report(code)
    with pytest.raises(kind, match=f"NCCL result {code}"):
        backend.check()


def test_an_init_that_fails_says_what_nccl_says(
    stub: Callable[[int], Stub], gpu: torch.device
) -> None:
    stub(22809).fail("ncclCommInitRankConfig", 1)
    words = "ncclCommInitRankConfig: NCCL result 1, a CUDA call failed: words; what went wrong last"
    with pytest.raises(DcpCommError, match=words):
        PyNcclBackend.connect(meeting(gpu))


def test_an_init_that_hangs_is_left_behind_and_aborted_when_it_returns(
    stub: Callable[[int], Stub], gpu: torch.device
) -> None:
    library = stub(22809)
    library.hang("ncclCommInitRankConfig")
    with pytest.raises(CommTimeout, match=r"creating the NCCL communicator 'w'.*within 1 s"):
        PyNcclBackend.connect(replace(meeting(gpu), deadline=Deadline(1.0)))
    assert "ncclCommAbort" not in library.names
    library.release()
    assert library.aborted()


def test_split_names_a_color_that_no_other_part_has(connect: Connect, gpu: torch.device) -> None:
    """Of the part's lowest rank; the key is the place in the part."""
    backend, library = connect(options=NcclOptions(max_ctas=3))
    child = replace(meeting(gpu), rank=1, name="w/1.7")
    part = backend.split(child, (5, 3))
    assert isinstance(part, PyNcclBackend)
    assert (part.rank, part.size) == (1, 2)
    assert library.history[-1].startswith(f"ncclCommSplit {COMM:#x} 3 1 config: 72 cafebeef 22700")
    issue(part, Call("broadcast", torch.zeros(1), torch.zeros(1), peer=0))
    assert f"{PART:#x} {STREAM:#x}" in library.history[-1]
    part.close(Deadline(2.0))


def test_outsiders_split_too_and_get_nothing(connect: Connect) -> None:
    backend, library = connect()
    assert backend.split(None, ()) is None
    assert library.history[-1].startswith(f"ncclCommSplit {COMM:#x} -1 0 config: inherited")


def test_without_ncclcommsplit_a_part_gets_an_id_of_its_own(
    connect: Connect, gpu: torch.device
) -> None:
    backend, library = connect(21403)
    part = backend.split(meeting(gpu).child("w/1.0", (0, 1), Deadline(5.0)), (0, 1))
    assert isinstance(part, PyNcclBackend)
    assert library.names[-2:] == ["ncclGetUniqueId", "ncclCommInitRankConfig"]
    assert backend.split(None, ()) is None
    part.close(Deadline(2.0))


def test_close_destroys_once_and_for_all(connect: Connect) -> None:
    backend, library = connect()
    backend.close(Deadline(2.0))
    backend.close(Deadline(2.0))
    backend.abort()
    assert library.names[2:] == ["ncclCommDestroy"]
    for use in (
        backend.check,
        lambda: issue(backend, Call("send", torch.zeros(1), torch.zeros(1))),
    ):
        with pytest.raises(CommClosed, match="dropped by close or abort"):
            use()
