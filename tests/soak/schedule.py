"""What happens in a soak, all of it a function of the seed: calls, their data, how epochs end."""

import random
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dcp_comm.testing.faults import Delay, Fault, Kill, Raise, Stop
from tests import oracle
from tests.oracle import Floats, Ints

LARGEST = 4096
K, ROWS, TOKENS = 8, 3, 50
MERGES_EVERY = 10
"""One call in so many is the gather of a merge."""
ENDINGS = {"close": 2, "late": 2, "short freeze": 2, "kill": 4, "raise": 2, "leave": 2, "freeze": 1}
"""How an epoch ends, and how often among all."""
HARMLESS = ("close", "late", "short freeze")
EPOCH_CALLS, UNTIL_NOTICED = 250, 100_000


@dataclass(frozen=True)
class Epoch:
    """One life of a communicator.

    Attributes:
        number: From 0.
        calls: How many gathers go well.
        ending: One of `ENDINGS`.
        victim: Whose fault it is.
        call: At which call; the one after those that go well, where the end is not harmless.
        check: The level of ``DCP_COMM_CHECK``.
        faults: What is ordered.
    """

    number: int
    calls: int
    ending: str
    victim: int
    call: int
    check: str
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """A whole soak.

    Attributes:
        seed: Of all that is random.
        size: Number of ranks.
        gathers: How many go well in all epochs.
        timeout: Seconds that one call may wait.
    """

    seed: int
    size: int
    gathers: int
    timeout: float

    @property
    def spared(self) -> int:
        """The rank that is never killed, whose memory shows whether anything grows."""
        return self.seed % self.size

    @cached_property
    def epochs(self) -> tuple[Epoch, ...]:
        """All of them; the first and the last end well."""
        count = max(len(ENDINGS) + 2, self.gathers // EPOCH_CALLS)
        rng = random.Random(f"{self.seed}/epochs")
        each = rng.sample(list(ENDINGS), len(ENDINGS))
        more = rng.choices(list(ENDINGS), list(ENDINGS.values()), k=count - 2 - len(each))
        borders = sorted(rng.sample(range(1, self.gathers), count - 1))
        ends = (*borders, self.gathers)
        sizes = [end - start for start, end in zip((0, *borders), ends, strict=True)]
        endings = ["close", *each, *more, "close"]
        return tuple(self._epoch(*each) for each in zip(range(count), sizes, endings, strict=True))

    def _epoch(self, number: int, calls: int, ending: str) -> Epoch:
        rng = random.Random(f"{self.seed}/epoch/{number}")
        others = [rank for rank in range(self.size) if rank != self.spared]
        victim = rng.choice(others) if ending == "kill" else rng.randrange(self.size)
        call = rng.randrange(calls) if ending in HARMLESS else calls
        faults: dict[str, tuple[Fault, ...]] = {
            "late": tuple(
                Delay(rank, late, seconds=rng.uniform(0, 0.05))
                for rank in range(self.size)
                for late in sorted(rng.sample(range(calls), min(calls, 3)))
            ),
            "kill": (Kill(victim, call, after=rng.choice((None, None, 1e-4, 2e-3))),),
            "raise": (Raise(victim, call),),
            "freeze": (Stop(victim, call),),
            "short freeze": (Stop(victim, call),),
        }
        check = rng.choice(("0", "merge", "all"))
        return Epoch(number, calls, ending, victim, call, check, faults.get(ending, ()))

    def tried(self, epoch: Epoch) -> int:
        """How many calls a rank makes that nothing happens to itself.

        A rank that is killed inside a call may have given its part before: the others go on until
        they notice.
        """
        after = {"kill": UNTIL_NOTICED}.get(epoch.ending, 1)
        return epoch.calls + (0 if epoch.ending in HARMLESS else after)

    def frozen_seconds(self, epoch: Epoch) -> float:
        """How long a frozen rank stays so."""
        return self.timeout + 1.0 if epoch.ending == "freeze" else self.timeout / 10

    def is_merge(self, epoch: int, call: int) -> bool:
        """Whether a call is the gather of a merge."""
        return random.Random(f"{self.seed}/kind/{epoch}/{call}").randrange(MERGES_EVERY) == 0

    def payload(self, epoch: int, call: int, rank: int) -> bytes:
        """What a rank gives to a plain gather: as long as the others', and like nothing else."""
        nbytes = random.Random(f"{self.seed}/size/{epoch}/{call}").randint(1, LARGEST)
        return random.Random(f"{self.seed}/{epoch}/{call}/{rank}").randbytes(nbytes)

    def scores(self, epoch: int, call: int) -> tuple[Floats, Ints]:
        """Scores (T, L) with many ties, and lengths (T,), of a merge."""
        rng = np.random.default_rng([self.seed, epoch, call])
        scores = rng.integers(0, 9, (ROWS, TOKENS)).astype(np.float32)
        return scores, rng.integers(0, TOKENS + 1, ROWS)

    def answer(self, epoch: int, call: int) -> bytes:
        """What every rank must get."""
        if not self.is_merge(epoch, call):
            return b"".join(self.payload(epoch, call, rank) for rank in range(self.size))
        ids, _ = oracle.topk(*self.scores(epoch, call), K)
        return ids.astype(np.int32).tobytes()
