"""Small things for the tests of ``bench``: what to time, and rows that deal unevenly."""

import torch

from dcp_comm.cli.bench.inputs import Question
from dcp_comm.cli.bench.rows import Shape
from dcp_comm.cli.bench.wanted import Wanted

CPU = torch.device("cpu")


def small(**changes: object) -> Wanted:
    """Everything once, in a moment."""
    options: dict[str, object] = {
        "shapes": (Shape(3, 40),),
        "kinds": ("plateau",),
        "k": 8,
        "sizes": (2,),
        "local": (),
        "outputs": ("global", "local"),
        "order": "score",
        "routes": ("gather", "owner", "splitter", "splitter/owner", "auto"),
        "only": "",
        "seconds": 1.0,
        "largest": 1024,
        "steps": 2,
        "step_rows": 6,
        "logits": 100,
    }
    return Wanted(**{**options, **changes})  # type: ignore[arg-type]


def question(kind: str = "plateau", rows: int = 5, length: int = 67, size: int = 3) -> Question:
    """Tokens and rows that no number of ranks divides."""
    return Question.draw(Shape(rows, length), kind, 16, size, CPU)
