"""Records by which ranks compare what they are about to do: fixed size, text inside, no pickle."""

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence

from dcp_comm.errors import CommArgumentError, CommMismatch, refusal

RECORD_BYTES = 1024
FINGERPRINT_BYTES = 64

_FINGERPRINT = struct.Struct("<4sI8s40sq")
_MAGIC = b"DCP1"

Fields = dict[str, str]


def encode(fields: Mapping[str, object]) -> bytes:
    """Write fields as ``name=value`` lines into one zero-padded record of `RECORD_BYTES`.

    Raises:
        CommArgumentError: The text does not fit.
    """
    lines = (f"{name}={_one_line(value)}" for name, value in fields.items())
    text = "\n".join(lines).encode(errors="replace")
    if len(text) > RECORD_BYTES:
        need = f"at most {RECORD_BYTES} bytes of text"
        raise CommArgumentError(refusal("agree", "fields", f"{len(text)} bytes", need))
    return text.ljust(RECORD_BYTES, b"\0")


def decode(record: bytes, rank: int) -> Fields:
    """Read what `encode` wrote, checking its length first: a peer's bytes are not trusted.

    Raises:
        CommMismatch: The record is no record of ours.
    """
    if len(record) != RECORD_BYTES:
        got = f"{len(record)} bytes from rank {rank}"
        raise CommMismatch(refusal("agree", "record", got, f"{RECORD_BYTES} bytes"))
    lines = record.rstrip(b"\0").decode(errors="replace").split("\n")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def compare(what: str, ranks: Sequence[Fields], may_differ: Iterable[str] = ()) -> None:
    """Raise unless every rank's fields are equal, apart from those that may differ.

    Raises:
        CommMismatch: With a table of the fields that differ, a column a rank.
    """
    names = dict.fromkeys(name for fields in ranks for name in fields)
    for name in may_differ:
        names.pop(name, None)
    differing = [name for name in names if len({fields.get(name) for fields in ranks}) > 1]
    if differing:
        text = (
            f"{what}: the ranks do not agree on {', '.join(differing)}\n{table(ranks, differing)}"
        )
        raise CommMismatch(f"{text}\nGive every rank the same values")


def table(ranks: Sequence[Fields], names: Iterable[str]) -> str:
    """Lay out the named fields, a line a rank."""
    header = ["rank", *names]
    rows = [[str(r), *(fields.get(n, "-") for n in header[1:])] for r, fields in enumerate(ranks)]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in [header, *rows]
    ]
    return "\n".join("  " + line for line in lines)


def fingerprint(sequence: int, text: str, count: int, epoch: str = "") -> bytes:
    """Condense a call into `FINGERPRINT_BYTES`.

    Args:
        sequence: The call's number.
        text: What it is and what for; cut, with a digest of all of it and of the epoch.
        count: Of whatever the call is about.
        epoch: The communicator's name, which tells one start of it from the next.
    """
    words = text.encode(errors="replace")
    whole = b"%s\0%s" % (epoch.encode(errors="replace"), words)
    digest = hashlib.blake2b(whole, digest_size=8).digest()
    return _FINGERPRINT.pack(_MAGIC, sequence % 2**32, digest, words[:40], count)


def compare_fingerprints(records: Sequence[bytes]) -> None:
    """Raise unless all ranks' fingerprints are the same bytes.

    Raises:
        CommMismatch: With a line a rank: the number of its call and what it was.
    """
    if len(set(records)) == 1:
        return
    lines = []
    for rank, record in enumerate(records):
        _, sequence, digest, text, count = _FINGERPRINT.unpack(record)
        words = text.rstrip(b"\0").decode(errors="replace")
        lines.append(f"  rank {rank}: call {sequence}: {words} ({count}) [{digest.hex()}]")
    raise CommMismatch("the ranks are not making the same call\n" + "\n".join(lines))


def _one_line(value: object) -> str:
    return str(value).replace("\n", "; ").replace("\0", "")
