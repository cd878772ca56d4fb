"""Short, empty and padding rows that went wrong in public, by value, through every strategy."""

import pytest
import torch

from dcp_comm.communicator import Communicator
from dcp_comm.errors import CommArgumentError
from dcp_comm.specs import BufferSpec
from dcp_comm.testing import run_ranks
from dcp_comm.topk.local import local_topk
from dcp_comm.topk.result import MergeResult
from tests.schemes import SCHEMES, Scheme, merge_of
from tests.topk.cases import poisoned

GLOBAL = [scheme for scheme in SCHEMES if scheme[1] == "global"]
LOCAL = [scheme for scheme in SCHEMES if scheme[1] == "local"]

every_scheme = pytest.mark.parametrize("scheme", SCHEMES, ids=str)


def dealt(comm: Communicator, row: list[float]) -> torch.Tensor:
    """This rank's scores of a row, (1, n)."""
    return torch.tensor([row[comm.rank :: comm.size]])


def merged(
    comm: Communicator, scheme: Scheme, rows: list[list[float]], k: int, byte: int = 0xA5
) -> MergeResult:
    """Select from rows of equal length, into a result whose every byte was ``byte``."""
    merge = merge_of(comm, scheme, len(rows), k=k)
    out = MergeResult(
        poisoned(BufferSpec("ids", (len(rows), k), torch.int32), byte),
        poisoned(BufferSpec("counts", (len(rows),), torch.int32), byte),
        torch.full((len(rows),), byte % 2 == 1),
    )
    logits = torch.cat([dealt(comm, row) for row in rows])
    return merge(*local_topk(logits, k), out=out)


@every_scheme
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0xA5])
def test_a_row_without_tokens_is_all_padding(scheme: Scheme, byte: int) -> None:  # B17
    """Not token 0, which is what memory of zeros would say."""

    def fn(comm: Communicator) -> tuple[list[list[int]], list[int]]:
        result = merged(comm, scheme, [[]], 4, byte)
        return result.ids.tolist(), result.counts.tolist()

    assert run_ranks(fn, 2) == [([[-1] * 4], [0])] * 2


@pytest.mark.parametrize("scheme", GLOBAL, ids=str)
def test_slots_behind_the_last_token_are_exactly_minus_one(scheme: Scheme) -> None:  # B20
    def fn(comm: Communicator) -> list[int]:
        return merged(comm, scheme, [[5.0, 7.0]], 8).ids[0].tolist()

    assert run_ranks(fn, 2) == [[1, 0, *[-1] * 6]] * 2


@every_scheme
def test_no_padding_stands_before_a_winner(scheme: Scheme) -> None:  # B19
    """The first block of sixteen holds winners, wherever they were listed."""
    row = [float(token) if token >= 60 else -torch.inf for token in range(64)]

    def fn(comm: Communicator) -> tuple[list[int], int]:
        result = merged(comm, scheme, [row], 32)
        return result.ids[0].tolist(), int(result.counts[0])

    for rank, (ids, count) in enumerate(run_ranks(fn, 2)):
        own = [31, 30] if scheme[1] == "local" else [63, 62, 61, 60]
        assert ids == [*own, *[-1] * (32 - len(own))], rank
        assert count == len(own)


@pytest.mark.parametrize("scheme", LOCAL, ids=str)
def test_ranks_without_tokens_win_nothing(scheme: Scheme) -> None:  # B18
    """Three tokens over eight ranks; nobody's padding reaches anybody."""

    def fn(comm: Communicator) -> tuple[list[int], int, bool]:
        result = merged(comm, scheme, [[5.0, 7.0, 6.0]], 4)
        return result.ids[0].tolist(), int(result.counts[0]), bool(result.certified[0])

    owns, nothing = ([0, -1, -1, -1], 1, True), ([-1] * 4, 0, True)
    assert run_ranks(fn, 8) == [owns] * 3 + [nothing] * 5


@every_scheme
def test_rows_of_length_minus_one_and_zero_among_real_ones(scheme: Scheme) -> None:  # B57
    """Padding rows select nothing and change neither their neighbours nor what is exchanged."""
    lengths = torch.tensor([3, -1, 0, 3], dtype=torch.int32)

    def fn(comm: Communicator, lengths: torch.Tensor) -> tuple[list[int], list[list[int]], int]:
        merge = merge_of(comm, scheme, 4, k=3, chunk_rows=2)
        logits = torch.tensor([[1.0, 3.0, 2.0]]).repeat(4, 1) + comm.rank / 2
        comm.ledger.reset()
        result = merge(*local_topk(logits, 3, lengths=lengths), lengths)
        return result.counts.tolist(), result.ids[1:3].tolist(), comm.ledger.calls

    padded = run_ranks(fn, 2, lengths)
    whole = run_ranks(fn, 2, torch.full((4,), 3))
    for (counts, ids, calls), (full, _, usual) in zip(padded, whole, strict=True):
        assert counts == [full[0], 0, 0, full[3]]
        assert ids == [[-1] * 3] * 2
        assert calls == usual > 0


@every_scheme
def test_no_rows_are_no_exchange_and_an_empty_result(scheme: Scheme) -> None:  # B66
    def fn(comm: Communicator) -> tuple[tuple[int, ...], int]:
        merge = merge_of(comm, scheme, 16, k=8)
        comm.ledger.reset()
        ids = torch.empty(0, 8, dtype=torch.int32)
        result = merge(torch.empty(0, 8), ids, out=MergeResult.allocate(0, 8, "cpu"))
        return tuple(result.ids.shape), comm.ledger.calls

    assert run_ranks(fn, 2) == [((0, 8), 0)] * 2


def test_lengths_from_a_slice_of_a_wider_table() -> None:  # B60
    """A column of it is read where it lies; two columns are no lengths, and are refused."""
    table = torch.tensor([[2, 9, 9, 9], [1, 9, 9, 9], [0, 9, 9, 9]], dtype=torch.int32)
    logits = torch.tensor([[1.0, 2.0, 3.0]]).repeat(3, 1)

    def fn(comm: Communicator) -> list[list[int]]:
        merge = merge_of(comm, SCHEMES[0], 3, k=3)
        column = table[:, :2][:, 0]
        assert not column.is_contiguous()
        scores, ids = local_topk(logits, 3)
        with pytest.raises(CommArgumentError, match=r"lengths: got shape \(3, 2\), need shape"):
            merge(scores, ids, table[:, :2])
        return merge(scores, ids, column).ids.tolist()

    assert run_ranks(fn, 1) == [[[1, 0, -1], [0, -1, -1], [-1, -1, -1]]]
