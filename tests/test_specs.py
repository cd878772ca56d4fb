"""BufferSpec: sizes, and what is no buffer."""

from typing import Any

import numpy as np
import pytest
import torch

from dcp_comm.errors import CommArgumentError
from dcp_comm.specs import BufferSpec


def test_a_spec_counts_bytes_unrounded() -> None:
    assert BufferSpec("a", (3, 5), torch.int16).nbytes == 30
    assert BufferSpec("a", (), torch.float64).nbytes == 8
    assert BufferSpec("a", (7, 0), torch.float64).nbytes == 0
    assert BufferSpec("a", (2142, 1_002_240), torch.uint8).nbytes == 2_146_798_080  # B61
    assert BufferSpec("a", (131_072, 2048, 4, 2), torch.int32).nbytes == 2**33


def test_a_spec_is_a_value_with_a_plain_shape() -> None:
    spec = BufferSpec("a", torch.Size([2, 3]), torch.int32)
    assert type(spec.shape) is tuple
    assert spec == BufferSpec("a", [2, 3], torch.int32)  # type: ignore[arg-type]
    assert len({spec, BufferSpec("a", (2, 3), torch.int32)}) == 1
    with pytest.raises(AttributeError):
        spec.name = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("argument", "fields"),
    [
        ("name", ("", (1,), torch.int8)),
        ("name", (None, (1,), torch.int8)),
        ("shape", ("a", 4, torch.int8)),
        ("shape", ("a", (-1,), torch.int8)),
        ("shape", ("a", (2, True), torch.int8)),
        ("shape", ("a", (2.0,), torch.int8)),
        ("shape", ("a", "12", torch.int8)),
        ("shape", ("a", None, torch.int8)),
        ("dtype", ("a", (1,), "int8")),
        ("dtype", ("a", (1,), None)),
        ("dtype", ("a", (1,), np.int8)),
    ],
)
def test_what_is_no_buffer_is_refused(argument: str, fields: tuple[Any, Any, Any]) -> None:
    with pytest.raises(CommArgumentError, match=f"BufferSpec: {argument}: got .*, need "):
        BufferSpec(*fields)
