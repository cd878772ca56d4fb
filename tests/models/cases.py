"""Models, prompts and what the models say by themselves; how the ranks answer."""

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dcp_comm.communicator import Communicator
from dcp_comm.testing.models import MODELS, Comparison, ShardedModel, Truth, compare, small_model
from dcp_comm.testing.models.sharded import ShardedAttention


@dataclass(frozen=True)
class Case:
    """One model and one prompt for each request."""

    name: str
    seed: int = 0
    requests: int = 1
    prompt: int = 50
    steps: int = 64
    interleave: int = 1
    way: str = "all_to_all"
    device: str = "cpu"

    @property
    def model(self) -> Any:
        return _model(self.name, self.seed).to(self.device)

    @property
    def tokens(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(199, (self.requests, self.prompt), generator=generator).to(self.device)

    @property
    def truth(self) -> Truth:
        """What the model says by itself."""
        return Truth.of(self.model, self.tokens, self.steps)


@cache
def _model(name: str, seed: int) -> Any:
    assert name in MODELS
    return small_model(name, seed)


def answer(
    comm: Communicator,
    case: Case,
    truth: Truth,
    attention: type[ShardedAttention] | None = None,
) -> Comparison:
    """Decode with the sharded model on one rank."""
    sharded = ShardedModel(
        comm,
        case.model,
        case.prompt + case.steps,
        case.requests,
        case.interleave,
        page_size=4 * case.interleave,
        way=case.way,
        attention=attention,
    )
    return compare(sharded, truth)


def check(found: Comparison) -> None:
    """Every row, every token, and enough of them.

    Raises:
        AssertionError: Something differs, or too little was compared.
    """
    assert found.failures == [], asdict(found)
    assert found.compared >= 0.95 * found.rows, asdict(found)
    assert found.worst < 2e-5, asdict(found)
