"""The demo on one rank, from a text to an outcome; every rank runs it alike."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from dcp_comm.cli.demo import exactness, memory, strategies, where
from dcp_comm.cli.demo.corpus import QUESTION, Book, hide_needle, read
from dcp_comm.cli.demo.memory import Budget
from dcp_comm.cli.demo.mistakes import MISTAKES
from dcp_comm.cli.demo.outcome import Found, Options, Outcome, Run, Text
from dcp_comm.cli.demo.reference import Answers, answer
from dcp_comm.cli.demo.requests import Segment, step
from dcp_comm.cli.demo.scoring import score
from dcp_comm.cli.demo.stages import OURS, Setup
from dcp_comm.cli.demo.where import Stopwatch, Where
from dcp_comm.cli.options import UsageError
from dcp_comm.communicator import Communicator
from dcp_comm.sharding import Shard
from dcp_comm.topk.merge import TopKMerge
from dcp_comm.workspace import Workspace

CHUNK_ROWS = 1024
"""Rows of one exchange, at most."""

Progress = Callable[[str], None]


def open_book(options: Options) -> Book:
    """Read the text and hide the needle.

    Raises:
        UsageError: The text cannot be read, or is too short to be of use.
    """
    title, words = read(options.text)
    need = 4 * max(options.k, options.rows)
    if len(words) < need:
        raise UsageError(
            f"--text: {title} has {len(words):,} words, but --k {options.k} with --rows "
            f"{options.rows} needs {need:,}. Take a longer text or smaller numbers"
        )
    return hide_needle(title, words, options.needle_depth)


def perform(comm: Communicator, options: Options, progress: Progress) -> Outcome:
    """Index, select, compare; collective.

    Args:
        comm: At least two ranks.
        options: The same on every rank.
        progress: Told what comes next.

    Raises:
        UsageError: As `open_book`.
    """
    book, watch = open_book(options), Stopwatch()
    shard = Shard(comm.rank, comm.size, options.interleave)
    way = MISTAKES[options.broken].way if options.broken else OURS

    progress(f"indexing {len(book.words):,} tokens of {book.title}")
    with watch("embed the text"):
        segments = step(book, options.rows, comm.device)
    rows = sum(segment.rows for segment in segments)
    progress(f"scoring {rows:,} rows, each rank against its own tokens")
    with watch("score own tokens"):
        logits = [score(segment, shard) for segment in segments]

    setup, budget = _reserve(comm, shard, options.k, rows)
    progress("selecting: local top-K, then the merge, in reserved memory")
    with watch("local top-K"):
        found = way.found(setup, logits)
    comm.barrier()
    comm.ledger.reset()
    with watch("merge: pack, exchange, select"):
        selected = way.merged(setup, found)
    travelled = where.travelled(comm)

    progress("the published merge under the same cap")
    in_memory = memory.compare(setup, budget, found, selected)
    progress("the plain answer: whole rows in float64, sorted; every rank takes its share of rows")
    with watch("plain answer, to compare"):
        answers = _answers(comm, segments, options.k)
    exact = exactness.compare(setup, logits, answers, book.needle, way, progress)
    moved = strategies.compare(setup, OURS.found(setup, logits), answers.exact, progress)
    shares = where.shares(answers.exact, len(book.words), shard)
    return Outcome(
        options=options,
        text=Text(book.title, len(book.words), len(book.needle), book.needle.start),
        run=_run(comm, segments, answers),
        memory=in_memory,
        exactness=exact,
        strategies=moved,
        where=Where(shares, travelled),
        found=_found(book, selected, shard),
        seconds=watch.seconds,
    )


def _reserve(comm: Communicator, shard: Shard, k: int, rows: int) -> tuple[Setup, Budget]:
    """Prepare the merge; reserve its scratch under a cap of exactly that, and lock."""
    merge = TopKMerge(
        comm, k, rows, shard.interleave, strategy="gather", chunk_rows=min(rows, CHUNK_ROWS)
    )
    budget = Budget()
    workspace = Workspace(comm.device, allocator=budget)
    workspace.reserve(*merge.specs(), owner="top-K merge")
    budget.cap = workspace.nbytes
    workspace.lock()
    merge.prepare()
    return Setup(comm, shard, k, rows, merge, workspace), budget


def _answers(comm: Communicator, segments: Sequence[Segment], k: int) -> Answers:
    """Have every rank answer each size-th row, then share the answers."""
    mine = answer(segments, k, comm.rank, comm.size)
    rows = sum(segment.rows for segment in segments)
    largest = torch.tensor([mine.largest, not mine.whole], device=comm.device)
    comm.all_reduce(largest, "max")
    exact, plateau = (_shared(comm, each, rows) for each in (mine.exact, mine.plateau))
    return Answers(exact, plateau, float(largest[0]), not largest[1])


def _shared(comm: Communicator, mine: Tensor, rows: int) -> Tensor:
    """Return all rows, of which each rank has every size-th."""
    each = -(-rows // comm.size)
    padded = pad(mine.to(comm.device), (0, 0, 0, each - len(mine)))
    everyone = padded.new_empty(comm.size, *padded.shape)
    comm.all_gather_into(everyone, padded)
    return everyone.transpose(0, 1).flatten(0, 1)[:rows]


def _run(comm: Communicator, segments: Sequence[Segment], answers: Answers) -> Run:
    rows = {segment.name: segment.rows for segment in segments}
    return Run(
        ranks=comm.size,
        backend=comm.backend,
        device=str(comm.device),
        segments=rows,
        chunk_rows=min(CHUNK_ROWS, sum(rows.values())),
        largest_score=int(answers.largest),
        whole_scores=answers.whole,
    )


def _found(book: Book, selected: Tensor, shard: Shard) -> Found:
    """Return the question's best token with its neighbours."""
    position = min(max(0, int(selected[-1, 0])), len(book.words) - 1)
    before = book.words[max(0, position - 4) : position]
    after = book.words[position + 1 : position + 6]
    excerpt = " ".join((*before, f"[{book.words[position]}]", *after))
    return Found(QUESTION, position, shard.owner(position), excerpt)
