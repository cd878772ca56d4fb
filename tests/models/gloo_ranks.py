"""One rank of `tests.models.test_whole`: whole models over gloo, a few tokens decoded."""

from dataclasses import asdict, replace

import torch

import dcp_comm as dc
from tests.models.cases import Case, answer
from tests.processes import report

# Before the ranks fork: importing transformers takes each process seconds. Without torch's threads,
# which no fork would have.
torch.set_num_threads(1)
MODELS = {name: Case(name, seed=1) for name in ("glm-5", "deepseek-v3.2")}
for each in MODELS.values():
    assert each.model is not None


def compare(steps: int) -> None:
    """Compare over all ranks, then over every two of them."""
    torch.set_grad_enabled(False)
    with dc.init("torch", "cpu", timeout=100) as comm:
        pair = comm.split(comm.rank // 2)
        assert pair is not None
        for group, (name, case) in zip((comm, pair), MODELS.items(), strict=True):
            chosen = replace(case, steps=steps, interleave=group.size // 2)
            found = answer(group, chosen, chosen.truth)
            report(topic=f"{name} over {group.size}", found=asdict(found))
        pair.close()


def main() -> None:
    """A cross-section, for the default set of tests."""
    compare(steps=10)
