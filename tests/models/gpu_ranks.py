"""Whole models on ranks that share a GPU: ``python -m tests.models.gpu_ranks BACKEND``."""

import sys
from dataclasses import asdict

import torch

import dcp_comm as dc
from dcp_comm.testing.models import MODELS
from tests.models.cases import Case, answer
from tests.processes import report


def main(backend: str) -> None:
    """Compare each model, 64 tokens decoded."""
    torch.set_grad_enabled(False)
    with dc.init(backend, timeout=60) as comm:
        for name in MODELS:
            case = Case(name, interleave=2, device="cuda")
            report(topic=name, found=asdict(answer(comm, case, case.truth)))


if __name__ == "__main__":
    main(sys.argv[1])
