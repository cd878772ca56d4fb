"""What a legal call is: every refusal names argument, got and need; in place is one slot only."""

import warnings
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dcp_comm import contract
from dcp_comm.contract import FLOATS, INTEGERS, REDUCTIONS, Call, Place
from dcp_comm.errors import CommArgumentError

CPU = torch.device("cpu")
PLACE = Place(1, 4, CPU, "fake")


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def quantized() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(zeros(3), 0.1, 0, torch.qint8)


def inference() -> Tensor:
    with torch.inference_mode():
        return zeros(4, 3)


LEGAL: list[tuple[str, Callable[[], Call]]] = [
    ("stacked", lambda: contract.all_gather_into(zeros(4, 3), zeros(3), PLACE)),
    ("joined", lambda: contract.all_gather_into(zeros(12), zeros(3), PLACE)),
    ("joined matrix", lambda: contract.all_gather_into(zeros(8, 3), zeros(2, 3), PLACE)),
    ("stacked matrix", lambda: contract.all_gather_into(zeros(4, 2, 3), zeros(2, 3), PLACE)),
    ("scalar", lambda: contract.all_gather_into(zeros(4), torch.tensor(1.0), PLACE)),
    ("empty", lambda: contract.all_gather_into(zeros(4, 0), zeros(0), PLACE)),
    ("empty rows", lambda: contract.all_gather_into(zeros(0, 3), zeros(0, 3), PLACE)),
    ("input with grad", lambda: contract.all_gather_into(zeros(4, 3), with_grad(3), PLACE)),
    ("strides of size 1", lambda: contract.all_gather_into(zeros(4, 1), zeros(1, 5)[:, 2], PLACE)),
    ("blocks", lambda: contract.all_to_all_into(zeros(8, 3), zeros(8, 3), PLACE)),
    ("no blocks", lambda: contract.all_to_all_into(zeros(0, 3), zeros(0, 3), PLACE)),
    ("scatter", lambda: contract.reduce_scatter_into(zeros(3), zeros(4, 3), "sum", PLACE)),
    ("scatter one", lambda: contract.reduce_scatter_into(zeros(1)[0], zeros(4), "max", PLACE)),
    ("reduce", lambda: contract.all_reduce(zeros(2, 3), "avg", PLACE)),
    ("broadcast", lambda: contract.broadcast(zeros(3, dtype=torch.bool), 3, PLACE)),
    ("send", lambda: contract.send(with_grad(3), 0, PLACE)),
    ("recv", lambda: contract.recv(zeros(3), 2, PLACE)),
]

REFUSED: list[tuple[Callable[[], Call], str, str]] = [
    (lambda: contract.all_gather_into([1.0], zeros(1), PLACE), "output", "got list, need a torch"),  # type: ignore[arg-type]
    (lambda: contract.all_gather_into(zeros(4), None, PLACE), "input", "got NoneType, need a"),  # type: ignore[arg-type]
    (lambda: contract.all_gather_into(zeros(4, 3).double(), zeros(3), PLACE), "output", "float64"),
    (lambda: contract.all_gather_into(zeros(4, 4), zeros(3), PLACE), "output", "(4, 4), need (4,"),
    (lambda: contract.all_gather_into(zeros(3, 4), zeros(3), PLACE), "output", "4 slots of (3,)"),
    (lambda: contract.all_gather_into(zeros(12, 1), zeros(3), PLACE), "output", "or (12,)"),
    (lambda: contract.all_gather_into(zeros(1), zeros(1)[0], PLACE), "output", "need (4,), 4"),
    (lambda: contract.all_gather_into(zeros(4, 3), zeros(6)[::2], PLACE), "input", "strides (2,)"),
    (lambda: contract.all_gather_into(zeros(3, 4).T, zeros(3), PLACE), "output", "contiguous"),
    (lambda: contract.all_gather_into(zeros(1, 3).expand(4, 3), zeros(3), PLACE), "output", "(0,"),
    (lambda: contract.all_gather_into(zeros(4, 3).to("meta"), zeros(3), PLACE), "output", "a meta"),
    (lambda: contract.all_gather_into(zeros(4, 3), quantized(), PLACE), "input", "a quantized"),
    (lambda: contract.all_gather_into(zeros(4, 3), zeros(3).to_sparse(), PLACE), "input", "sparse"),
    (lambda: contract.all_gather_into(with_grad(4, 3), zeros(3), PLACE), "output", "Pass .detach"),
    (lambda: contract.all_gather_into(inference(), zeros(3), PLACE), "output", "inference"),
    (
        lambda: contract.all_gather_into(zeros(4, 3, dtype=torch.complex64), conjugate(), PLACE),
        "input",
        "conj",
    ),
    (lambda: contract.all_gather_into(zeros(4, 3), conjugate().imag, PLACE), "input", "neg view"),
    (lambda: contract.all_to_all_into(zeros(8), zeros(2, 4), PLACE), "input", "divisible by 4"),
    (lambda: contract.all_to_all_into(zeros(4), zeros(1)[0], PLACE), "input", "got (), need a"),
    (lambda: contract.all_to_all_into(zeros(2, 4), zeros(4, 2), PLACE), "output", "shape (4, 2)"),
    (lambda: contract.reduce_scatter_into(zeros(3), zeros(3, 3), "sum", PLACE), "input", "(4, 3)"),
    (lambda: contract.reduce_scatter_into(zeros(3), zeros(4, 3), "mean", PLACE), "op", "'mean'"),
    (lambda: contract.reduce_scatter_into(zeros(3), zeros(4, 3), "SUM", PLACE), "op", "one of sum"),
    (
        lambda: contract.all_reduce(zeros(3).bool(), "sum", PLACE),
        "tensor",
        "for sum one of float16",
    ),
    (lambda: contract.all_reduce(zeros(3).short(), "max", PLACE), "tensor", "torch.int16"),
    (lambda: contract.all_reduce(zeros(3).int(), "avg", PLACE), "tensor", "Convert it first"),
    (lambda: contract.all_reduce(with_grad(3), "sum", PLACE), "tensor", "requires_grad=True"),
    (lambda: contract.broadcast(zeros(3), 4, PLACE), "root", "got 4, need a rank from 0 to 3"),
    (lambda: contract.broadcast(zeros(3), -1, PLACE), "root", "got -1"),
    (lambda: contract.broadcast(zeros(3), True, PLACE), "root", "got True"),
    (lambda: contract.broadcast(zeros(3), 1.0, PLACE), "root", "got 1.0"),  # type: ignore[arg-type]
    (lambda: contract.send(zeros(3), 1, PLACE), "peer", "got 1, this rank itself, need another"),
    (lambda: contract.recv(zeros(3), None, PLACE), "peer", "got None"),  # type: ignore[arg-type]
    (lambda: contract.send(zeros(6)[::2], 0, PLACE), "tensor", "contiguous"),
    (lambda: contract.recv(with_grad(3), 0, PLACE), "tensor", "requires_grad=True"),
]


def with_grad(*shape: int) -> Tensor:
    return torch.zeros(shape, requires_grad=True)


def complexes() -> Tensor:
    return torch.zeros(4, 3, dtype=torch.complex64)


def conjugate() -> Tensor:
    return torch.zeros(3, dtype=torch.complex64).conj()


@pytest.mark.parametrize("make", [make for _, make in LEGAL], ids=[name for name, _ in LEGAL])
def test_legal_calls(make: Callable[[], Call]) -> None:
    call = make()
    assert call.op in f"{call}"
    assert call.nbytes == call.payload.nbytes
    assert call.empty == (call.payload.numel() == 0)


@pytest.mark.parametrize(("make", "argument", "words"), REFUSED)
def test_refusals(make: Callable[[], Call], argument: str, words: str) -> None:
    with pytest.raises(CommArgumentError) as caught:
        make()
    text = str(caught.value)
    assert f": {argument}: got " in text
    assert ", need " in text
    assert words in text
    assert "(rank 1 of 4, backend fake)" in text
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("op", REDUCTIONS)
def test_reductions_are_defined_on_the_dtypes_of_the_table(op: str) -> None:
    wanted = set(FLOATS) if op == "avg" else {*FLOATS, *INTEGERS}
    accepted = set()
    for dtype in {each for each in vars(torch).values() if isinstance(each, torch.dtype)}:
        try:
            contract.all_reduce(torch.empty(2, dtype=dtype), op, PLACE)
            accepted.add(dtype)
        except CommArgumentError:
            pass
    assert accepted == wanted


@given(st.integers(1, 6), st.data())
def test_an_input_inside_the_output_is_the_own_slot_or_refused(
    size: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, size - 1))
    count = data.draw(st.integers(1, 4))
    memory = torch.zeros((size + 2) * count)
    whole = memory[count : (size + 1) * count].view(size, count)
    offset = data.draw(st.integers(0, (size + 1) * count))
    slot = memory[offset : offset + count]
    place = Place(rank, size, CPU, "fake")
    apart = offset + count <= count or offset >= (size + 1) * count
    own = offset == (rank + 1) * count

    checks: list[Callable[[], Call]] = [
        lambda: contract.all_gather_into(whole, slot, place),
        lambda: contract.reduce_scatter_into(slot, whole, "sum", place),
    ]
    for check in checks:
        if apart or own:
            assert check().nbytes == slot.nbytes
        else:
            with pytest.raises(CommArgumentError, match=f"input: got .* exactly slot {rank} "):
                check()


@given(st.integers(1, 5), st.integers(0, 20))
def test_all_to_all_never_works_in_place(size: int, offset: int) -> None:
    memory = torch.zeros(4 * size + 20)
    output, input = memory[: 4 * size], memory[offset : offset + 4 * size]
    place = Place(0, size, CPU, "fake")
    if offset >= 4 * size:
        assert contract.all_to_all_into(output, input, place).input is input
    else:
        with pytest.raises(CommArgumentError, match="input: got memory that overlaps"):
            contract.all_to_all_into(output, input, place)


def test_the_payload_is_one_rank_s_part() -> None:
    part, whole = zeros(3), zeros(4, 3)
    assert contract.all_gather_into(whole, part, PLACE).payload is part
    assert contract.reduce_scatter_into(part, whole, "sum", PLACE).payload is part


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("all_reduce", zeros(3), zeros(3), reduce="sum"), "all_reduce float32 x 3 sum"),
        (Call("broadcast", zeros(3), zeros(3), peer=0), "broadcast float32 x 3 root 0"),
        (Call("send", zeros(3), zeros(3), peer=2), "send float32 x 3 peer 2"),
    ],
)
def test_calls_in_words(call: Call, words: str) -> None:
    assert str(call) == words


def test_byte_views_share_memory_whatever_the_dtype() -> None:
    for dtype in (torch.bool, torch.complex32, torch.float8_e5m2, torch.uint64):
        tensor = torch.empty(2, 3, dtype=dtype)
        view = contract.byte_view(tensor)
        assert (view.data_ptr(), view.nbytes) == (tensor.data_ptr(), tensor.nbytes)
    assert contract.byte_view(torch.tensor(1.0)).shape == (4,)
    assert not contract.byte_view(with_grad(3)).requires_grad


def test_inference_tensors_are_written_in_inference_mode() -> None:
    output = inference()
    with torch.inference_mode():
        assert contract.all_gather_into(output, zeros(3), PLACE).output is output


def test_collectives_and_pairs() -> None:
    assert contract.broadcast(zeros(1), 0, PLACE).collective
    assert not contract.send(zeros(1), 0, PLACE).collective
