"""Records and fingerprints: fixed size, bounds-checked, differences in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_comm import agreement
from dcp_comm.agreement import FINGERPRINT_BYTES, RECORD_BYTES
from dcp_comm.errors import CommArgumentError, CommMismatch

LINE = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=20)
NAME = st.text("abcdefgh_", min_size=1, max_size=8)


@given(st.dictionaries(NAME, LINE | st.integers() | st.booleans(), max_size=6))
def test_what_was_encoded_is_decoded(fields: dict[str, object]) -> None:
    record = agreement.encode(fields)
    assert len(record) == RECORD_BYTES
    assert agreement.decode(record, 0) == {name: f"{value}" for name, value in fields.items()}


def test_values_cannot_forge_fields() -> None:
    fields = agreement.decode(agreement.encode({"a": "1\nb=2\0c=3", "d": "x=y"}), 0)
    assert fields == {"a": "1; b=2c=3", "d": "x=y"}


def test_what_utf8_cannot_hold_is_replaced() -> None:
    assert agreement.decode(agreement.encode({"path": "a\udcffb"}), 0) == {"path": "a?b"}
    assert len(agreement.fingerprint(1, "a\udcffb", 0)) == FINGERPRINT_BYTES


def test_too_much_text_is_refused_here_and_now() -> None:
    with pytest.raises(CommArgumentError, match=r"agree: fields: got 1026 bytes, need at most"):
        agreement.encode({"a": "x" * 1024})
    assert len(agreement.encode({"a": "x" * 1022})) == RECORD_BYTES


@pytest.mark.parametrize("length", [0, 1, RECORD_BYTES - 1, RECORD_BYTES + 1, 10**6])
def test_a_record_of_another_length_is_not_read(length: int) -> None:
    with pytest.raises(CommMismatch, match=f"got {length} bytes from rank 3, need 1024 bytes"):
        agreement.decode(b"x" * length, 3)


@given(st.binary(min_size=RECORD_BYTES, max_size=RECORD_BYTES))
def test_hostile_bytes_are_fields_or_nothing(record: bytes) -> None:
    fields = agreement.decode(record, 0)
    assert all(isinstance(each, str) for pair in fields.items() for each in pair)


def test_equal_fields_agree() -> None:
    agreement.compare("merge", [{"k": "8", "rank": "0"}, {"k": "8", "rank": "1"}], ["rank"])
    agreement.compare("merge", [])


def test_differences_stand_in_a_table() -> None:
    ranks = [{"k": "8", "rows": "4"}, {"k": "16", "rows": "4"}, {"rows": "4", "x": "1"}]
    with pytest.raises(CommMismatch) as caught:
        agreement.compare("merge", ranks)
    assert str(caught.value).splitlines() == [
        "merge: the ranks do not agree on k, x",
        "  rank  k   x",
        "  0     8   -",
        "  1     16  -",
        "  2     -   1",
        "Give every rank the same values",
    ]


def test_fingerprints_have_one_length() -> None:
    for text in ("", "all_reduce", "ü" * 100):
        assert len(agreement.fingerprint(2**40, text, 3)) == FINGERPRINT_BYTES


def test_equal_fingerprints_agree() -> None:
    agreement.compare_fingerprints([agreement.fingerprint(5, "broadcast root 1", 1)] * 3)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ((5, "all_gather_into float32 x 8", 1), "rank 1: call 5: all_gather_into float32 x 8 (1)"),
        ((6, "all_reduce float32 x 8 sum", 1), "rank 1: call 6: all_reduce float32 x 8 sum (1)"),
        ((5, "all_reduce float32 x 8 sum", 2), "rank 1: call 5: all_reduce float32 x 8 sum (2)"),
    ],
)
def test_a_difference_names_both_sides(other: tuple[int, str, int], words: str) -> None:
    mine = agreement.fingerprint(5, "all_reduce float32 x 8 sum", 1)
    with pytest.raises(CommMismatch) as caught:
        agreement.compare_fingerprints([mine, agreement.fingerprint(*other)])
    lines = str(caught.value).splitlines()
    assert lines[0] == "the ranks are not making the same call"
    assert lines[1].startswith("  rank 0: call 5: all_reduce float32 x 8 sum (1) [")
    assert lines[2].strip().startswith(f"{words} [")


def test_words_that_are_cut_still_differ() -> None:
    start = "x" * 40
    records = [agreement.fingerprint(1, start + end, 0) for end in ("a", "b")]
    with pytest.raises(CommMismatch):
        agreement.compare_fingerprints(records)
