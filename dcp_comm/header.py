"""Header: what a merge is, sent on the data's way and compared on the device.

A comparison over the control plane costs a round trip of the host, and a captured graph cannot make
one. So on CUDA a few words a rank are all-gathered on the merge's stream before its payload, and
compared there. The verdict is copied to pinned memory, where the host finds it without waiting.
Nothing is allocated after construction; a graph that captures an exchange repeats it.
"""

import hashlib
from collections.abc import Callable

import torch

from dcp_comm.contract import Call, Place
from dcp_comm.errors import CommMismatch

WORDS = 3
_NUMBER, _VALUE, _DIGEST = range(WORDS)


class Headers:
    """One communicator's exchange of headers.

    Args:
        place: This rank.
        launch: Issues a call on torch's current stream.
    """

    def __init__(self, place: Place, launch: Callable[[Call], None]) -> None:
        self._launch = launch
        size, device = place.size, place.device
        with torch.inference_mode(False):
            self._everyones = torch.zeros(size, WORDS, dtype=torch.int64, device=device)
            self._differs = torch.zeros(size, WORDS, dtype=torch.bool, device=device)
            self._found = torch.zeros((), dtype=torch.bool, device=device)
            self._flag = torch.zeros((), dtype=torch.bool, device=device)
            verdict = torch.zeros(1 + size * WORDS, dtype=torch.int64, device=device)
            self._told = torch.zeros(1 + size * WORDS, dtype=torch.int64)
        if device.type == "cuda":
            self._told = self._told.pin_memory()
        self._own = self._everyones[place.rank]
        self._words = self._own.unbind()
        self._verdict, self._flagged = verdict, verdict[0]
        self._kept = verdict[1:].view(size, WORDS)
        self._flat = self._differs.view(-1)

    def exchange(self, number: int, text: str, value: int) -> None:
        """Enqueue the exchange and its comparison.

        Args:
            number: Of the call.
            text: What is about to be done; travels as a digest.
            value: A number that is worth being named, such as the rows.
        """
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        words = number, value, int.from_bytes(digest, "little", signed=True)
        for word, given in zip(self._words, words, strict=True):
            word.fill_(given)
        self._launch(Call("all_gather_into", self._everyones, self._own))
        torch.ne(self._everyones, self._own, out=self._differs)
        torch.any(self._flat, 0, out=self._found)
        torch.where(self._flag, self._kept, self._everyones, out=self._kept)
        self._flag.logical_or_(self._found)
        self._flagged.copy_(self._flag)
        self._told.copy_(self._verdict, non_blocking=True)

    def check(self) -> None:
        """Raise if an exchange that has run by now found a difference; never waits.

        Raises:
            CommMismatch: With a line a rank, of the first such exchange.
        """
        if not int(self._told[0]):
            return
        lines = [
            f"  rank {rank}: call {words[_NUMBER]}: ({words[_VALUE]}) "
            f"[{words[_DIGEST] % 2**64:016x}]"
            for rank, words in enumerate(self._told[1:].view(-1, WORDS).tolist())
        ]
        raise CommMismatch("the ranks were not making the same merge\n" + "\n".join(lines))
