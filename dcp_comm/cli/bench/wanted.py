"""What is to be timed: options, and what each kind of device takes by default."""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from dcp_comm.cli.bench.routes import OURS
from dcp_comm.cli.bench.rows import KINDS, Shape
from dcp_comm.cli.options import UsageError, whole
from dcp_comm.planning import DECODE_ROWS, LOGITS, PREFILL_LENGTHS
from dcp_comm.topk.options import ORDERS

OUTPUTS = ("global", "local")
DECODE_LENGTH = 1 << 17

_CUDA = (
    *(Shape(rows, DECODE_LENGTH) for rows in DECODE_ROWS),
    *(Shape(min(8192, LOGITS // length), length) for length in PREFILL_LENGTHS),
)
_LOCAL = tuple(
    Shape(rows, length)
    for rows, length in ((1024, 1 << 17), (128, 1 << 18), (32, 1 << 18), (4, 1 << 18), (1, 1 << 18))
)
_CPU = (Shape(1, 2048), Shape(64, 2048), Shape(8, 16_384))
_CUDA_K, _CPU_K = 2048, 256
_CUDA_STEP, _CPU_STEP = (8192, LOGITS), (128, 1 << 17)


@dataclass(frozen=True)
class Wanted:
    """What to time.

    Attributes:
        shapes: Rows and tokens of context.
        kinds: Names of `rows.KINDS`.
        k: Winners a row.
        sizes: Numbers of ranks whose parts one device holds.
        local: Rows and tokens of one rank, for its local top-K alone.
        outputs: Names of `OUTPUTS`.
        order: A name of `dcp_comm.topk.options.ORDERS`.
        routes: Names of `routes.OURS`.
        only: Stages, baselines and routes whose name holds this text.
        seconds: For everything that is timed on rows.
        largest: Bytes of the largest collective.
        steps: Merges in turn with torch's own collective.
        step_rows: Query rows of a layer's step of prefill, however many pieces its logits come in.
        logits: Scores that a piece of prefill has, at least.
    """

    shapes: tuple[Shape, ...]
    kinds: tuple[str, ...]
    k: int
    sizes: tuple[int, ...]
    local: tuple[Shape, ...]
    outputs: tuple[str, ...]
    order: str
    routes: tuple[str, ...]
    only: str
    seconds: float
    largest: int
    steps: int
    step_rows: int
    logits: int

    def pieces(self, shape: Shape) -> int:
        """Return how many of these pieces make a step of prefill; 1 for decode."""
        full = shape.rows * shape.length >= self.logits
        return max(1, self.step_rows // shape.rows) if full else 1

    def questions(self) -> Iterator[tuple[Shape, str]]:
        """Yield every shape with every kind."""
        yield from itertools.product(self.shapes, self.kinds)

    def batches(self) -> Iterator[tuple[int, Shape, str]]:
        """Yield what one device is to hold, the number of ranks first."""
        yield from ((1, shape, kind) for shape, kind in itertools.product(self.local, self.kinds))
        for size in self.sizes:
            yield from ((size, shape, kind) for shape, kind in self.questions())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add, one = parser.add_argument, "only these, by comma"
    add("--shapes", type=_shapes, metavar="TxL,...", help="rows x tokens of context, by comma")
    add("--kinds", type=_of(tuple(KINDS)), default=tuple(KINDS), metavar="NAMES", help=one)
    add("--k", type=whole(1, 4096), help=f"winners (default {_CUDA_K}; on CPU {_CPU_K})")
    add("--size", type=_sizes, default=(4,), metavar="P,...", help="ranks as a batch (default 4)")
    add("--outputs", type=_of(OUTPUTS), default=OUTPUTS, metavar="NAMES", help=one)
    add("--order", choices=ORDERS, default=ORDERS[0], help="of the winners (default %(default)s)")
    add("--strategies", type=_of(tuple(OURS)), default=tuple(OURS), metavar="NAMES", help=one)
    add("--only", default="", metavar="TEXT", help="stages and routes whose name holds TEXT")
    add("--budget-seconds", type=whole(1), default=300, metavar="S", help="default %(default)s")
    add("--max-bytes", type=whole(1024), metavar="N", help="largest collective of a launch")
    add("--steps", type=whole(0), metavar="N", help="merges in turn with torch's own collective")


def wanted(arguments: argparse.Namespace, device: torch.device) -> Wanted:
    """Return what was asked for, with the device's defaults.

    Raises:
        UsageError: A shape has fewer tokens than there are winners.
    """
    cuda = device.type == "cuda"
    k = arguments.k or (_CUDA_K if cuda else _CPU_K)
    shapes = arguments.shapes or (_CUDA if cuda else _CPU)
    for shape in shapes:
        if shape.length < k:
            raise UsageError(f"--shapes: {shape} has fewer tokens than K = {k}; give more or --k")
    step_rows, logits = _CUDA_STEP if cuda else _CPU_STEP
    return Wanted(
        shapes=shapes,
        kinds=arguments.kinds,
        k=k,
        sizes=arguments.size,
        local=_LOCAL if cuda and not arguments.shapes else (),
        outputs=arguments.outputs,
        order=arguments.order,
        routes=arguments.strategies,
        only=arguments.only,
        seconds=arguments.budget_seconds,
        largest=arguments.max_bytes or (1 << 27 if cuda else 1 << 16),
        steps=(10_000 if cuda else 20) if arguments.steps is None else arguments.steps,
        step_rows=step_rows,
        logits=logits,
    )


def _of(legal: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return an argparse type for some of these names, by comma."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        for name in names:
            if name not in legal:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(legal)}")
        return names

    return parse


def _shapes(text: str) -> tuple[Shape, ...]:
    count = whole(1)
    pairs = (each.partition("x") for each in text.split(","))
    return tuple(Shape(count(rows), count(length)) for rows, _, length in pairs)


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(whole(1, 64), text.split(",")))
