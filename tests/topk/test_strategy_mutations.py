"""The tests bite, for owner and splitter: each mistake fails the checks that guard it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.kernels import torch_ops as ops
from dcp_comm.topk import transport
from dcp_comm.topk.keys import PAD
from dcp_comm.topk.options import MergeOptions
from dcp_comm.topk.splitter import Splitter
from tests.topk import test_bytes
from tests.topk.cases import Case, check_merge
from tests.topk.lemma import dealt, most_without_x
from tests.topk.scores import drawn
from tests.topk.test_mutations import Patch, catch, replaced

K, SIZE, BLOCK = 12, 3, 4


def few_keys() -> Case:
    """Nine rows whose valid keys do not fit the windows, in chunks of four: no even deal."""
    rows = [most_without_x(np.random.default_rng(seed), K, SIZE, BLOCK) for seed in range(9)]
    scores = dealt(rows)
    return Case(scores, np.full(9, scores.shape[1]), SIZE, K, output="local", chunk_rows=4)


def merged(
    case: Case, strategy: str, by: str | None = None, **changes: Any
) -> Callable[[], object]:
    """The check: one case by one strategy against the oracle."""
    options = MergeOptions(by, BLOCK if by else None)
    return lambda: check_merge(replace(case, strategy=strategy, options=options, **changes))


def random_rows(kind: str, **changes: Any) -> Case:
    """Nine random rows; lists longer than K."""
    scores = drawn(kind, 9, 70, np.random.default_rng(5))
    case = Case(scores, np.full(9, 70), SIZE, K, 2, output="local", chunk_rows=4)
    return replace(case, **changes)


def without_override(patch: Patch) -> None:
    """Believe that the windows hold all open winners even where x is padding."""
    right = ops.threshold
    patch.setattr(
        ops,
        "threshold",
        lambda runs, lengths, t: right(runs, lengths, t).clamp(min=PAD + 1),
    )


def one_more_settled(patch: Patch) -> None:
    """One splitter too many, with the window that belongs to it."""
    right = Splitter.__init__

    def wrong(self: Splitter, problem: Any, by: Any, shape: Any) -> None:
        window = shape.window - shape.block
        right(self, problem, by, replace(shape, settled=shape.settled + 1, window=window))

    patch.setattr(Splitter, "__init__", wrong)


def one_rank_uncertified(right: Callable[..., Tensor], runs: Tensor, threshold: Tensor) -> Tensor:
    """Ask all ranks but the last."""
    return right(runs[:-1], threshold)


def unpadded(patch: Patch) -> None:
    """Leave whatever memory held in the rows that only fill up the last owner's."""
    right = Tensor.fill_

    def wrong(self: Tensor, value: Any) -> Tensor:
        return self if value == PAD else right(self, value)

    patch.setattr(Tensor, "fill_", wrong)


def wrong_owners(patch: Patch) -> None:
    """Give every owner its neighbour's rows."""
    right = Communicator.all_to_all_into

    def wrong(self: Communicator, output: Tensor, input: Tensor) -> None:
        right(self, output, input.roll(1, 0))

    patch.setattr(Communicator, "all_to_all_into", wrong)


def dealt_in_turn(patch: Patch) -> None:
    """Owners' rows come back interleaved instead of one owner after another."""
    right = transport.Owners.deliver

    def wrong(self: Any, answers: Any) -> Tensor:
        own = right(self, answers)
        return own.view(self.comm.size, -1).T.reshape(-1)

    patch.setattr(transport.Owners, "deliver", wrong)


def shifted(right: Callable[..., Any], windows: Tensor, run: Tensor, starts: Tensor) -> None:
    """Every window one key further."""
    right(windows, run, starts + 1)


def last_not_a_splitter(
    right: Callable[..., Any], splitters: Tensor, run: Tensor, block: int
) -> None:
    """Send the key before the last."""
    right(splitters, run, block)
    splitters[:, -1] = run[:, -2]


def one_tie(**changes: Any) -> Case:
    """The last rank alone lists ties with the last winner, and could have more."""
    rows = np.tile(np.array([9, 8, 5], dtype=np.float32), (5, 5))
    rows[:, 3::3] = rows[:, 4::3] = 1
    return Case(rows, np.full(5, 15), 3, 4, output="local", **changes)


TIED = random_rows("equal", tie="high")
UNEVEN = random_rows("few")
MUTATIONS: dict[str, tuple[Callable[[Patch], None], Callable[[], object]]] = {
    "window shifted by one": (
        replaced("copy_windows", shifted),
        merged(UNEVEN, "splitter", "all"),
    ),
    "override by padding dropped": (
        without_override,
        merged(few_keys(), "splitter", "all"),
    ),
    "t off by one": (one_more_settled, merged(UNEVEN, "splitter", "owner")),
    "certificate ignores one rank": (
        replaced("certify", one_rank_uncertified),
        merged(one_tie(), "splitter", "all"),
    ),
    "certificate of owners ignores one rank": (
        replaced("certify", one_rank_uncertified),
        merged(one_tie(), "owner"),
    ),
    "certificate lost on the way": (
        replaced("verdicts", lambda right, lengths, certified: lengths),
        merged(TIED, "splitter", "owner"),
    ),
    "certificate not sealed into ids": (
        replaced("seal", lambda right, ids, certified: None),
        merged(random_rows("normal", output="global"), "owner"),
    ),
    "last key not sent": (
        replaced("copy_splitters", last_not_a_splitter),
        merged(random_rows("few", tie="random"), "splitter", "all"),
    ),
    "rows that fill up not padded": (
        unpadded,
        lambda: test_bytes.test_every_reserved_byte_is_used_and_no_other("owner", 4),
    ),
    "rows of splitters that fill up not padded": (
        unpadded,
        lambda: test_bytes.test_every_reserved_byte_is_used_and_no_other("splitter/owner", 4),
    ),
    "neighbour's rows": (wrong_owners, merged(UNEVEN, "splitter", "owner")),
    "neighbour's rows, whole runs": (wrong_owners, merged(UNEVEN, "owner")),
    "answers in the wrong order": (dealt_in_turn, merged(UNEVEN, "owner")),
    "answers of splitters in the wrong order": (dealt_in_turn, merged(UNEVEN, "splitter", "owner")),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_mistake_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catch(*MUTATIONS[name], monkeypatch)
