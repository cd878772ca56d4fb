"""Strategy "splitter": every B-th key of each run tells where the last winners lie.

The lemma. p runs of K keys, descending, padded with `PAD`. Splitters are every B-th key of a run,
and its last one: m = ceil(K / B) of them. Let

    t = max(0, floor((K - (p-1)(B-1)) / B)),    W = K - t B,

x the t-th largest splitter of all (above every key if t = 0), and a_r the number of run r's
splitters among the t largest. If x is no padding:

1. the first a_r B keys of every run are winners;
2. the a_r sum to t, so exactly W winners are still open;
3. on run r they lie in the window of the W keys from a_r B on;
4. they are precisely the W largest keys of all windows.

If x is padding there are fewer than K valid keys, and all of them win.

Proof. At least a_r B and at most a_r B + B - 1 keys of run r reach x; on the run that x is from
exactly a_r B. So at most t B + (p-1)(B-1) <= K keys reach x, and all of them win. W winners remain;
on one run they are the next ones in order, at most W. What stands before the windows wins and what
stands behind them loses. If x is padding, at most t-1 splitters are valid, hence at most
(t-1) B + p (B-1) < K keys.

So the K-th winner is x or the W-th largest key of the windows, whichever is smaller; and as the
last key of each run is a splitter, whoever has both can certify the row.

=========  ==========================  =====================================
transport  bytes received a row        bytes of scratch
=========  ==========================  =====================================
all        ``(p-1) * 8 (m+W)``         ``(8 p (m+W) + 8 + 8 K) * rows``
owner      ``(p-1) * 8 (m+W+2) / p``   ``(16 (m+W+1) + 8 K) * p * d``
=========  ==========================  =====================================

where d = ceil(rows / p); both count this rank's sorted runs, which never leave it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dcp_comm.kernels.lemma import SplitterShape
from dcp_comm.kernels.primitives import Emission, Splitters
from dcp_comm.specs import BufferSpec
from dcp_comm.topk.keys import PAD
from dcp_comm.topk.strategy import Problem, Strategy
from dcp_comm.topk.transport import Transport, cut, first


class Splitter(Strategy):
    """Splitters, then windows; each rank learns its own winners and nobody more."""

    name = "splitter"
    outputs = ("local", "slots")

    def __init__(self, problem: Problem, transport: Transport, shape: SplitterShape) -> None:
        """Keep the sizes of the lemma and who evaluates it."""
        super().__init__(problem)
        self._transport, self._shape = transport, shape

    def specs(self, rows: int) -> tuple[BufferSpec, ...]:
        """This rank's runs, then what is exchanged."""
        transport, shape = self._transport, self._shape
        return (
            BufferSpec("run", (transport.padded(rows), self.problem.k), torch.int64),
            *transport.key_specs("splitters", rows, shape.splitters),
            *transport.key_specs("windows", rows, shape.window),
            *transport.answer_specs(rows),
        )

    def run(self, scratch: Sequence[Tensor], rows: int) -> Tensor:
        """The first buffer, without the padding."""
        return cut(scratch[0], rows, self.problem.k)

    def splitters(self, scratch: Sequence[Tensor], rows: int) -> Splitters:
        """Where they are sent from, without the padding."""
        own, _ = self._transport.lay(iter(scratch[1:]), rows, self._shape.splitters)
        return Splitters(first(own, rows), self._shape.block)

    def merge(self, scratch: Sequence[Tensor], to: Emission) -> None:
        """Exchange splitters, then windows, as the lemma says."""
        transport, kernels, shape = self._transport, self.problem.kernels, self._shape
        buffers = iter(scratch)
        run = cut(next(buffers), transport.padded(to.rows), shape.k)
        own_splitters, splitters = transport.lay(buffers, to.rows, shape.splitters)
        own_windows, windows = transport.lay(buffers, to.rows, shape.window)
        answers = transport.answers(tuple(buffers), to.rows)
        if transport.padded(to.rows) > to.rows:
            run[to.rows :].fill_(PAD)
            own_splitters[to.rows :].fill_(PAD)

        transport.collect(splitters, own_splitters)
        kernels.open_windows(splitters, answers.given, transport.only, shape)

        kernels.copy_windows(own_windows, run, transport.deliver(answers))
        transport.collect(windows, own_windows)
        kernels.close_windows(splitters, windows, answers.given, transport.only, shape)

        verdicts = transport.deliver(answers)
        kernels.emit_own(first(run, to.rows), first(verdicts, to.rows), to)
