"""The demo's parts by themselves: text, embedding, rows, scores, the plain answer, the judge."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_comm.cli.demo import corpus, embedding
from dcp_comm.cli.demo.acts import open_book
from dcp_comm.cli.demo.corpus import NEEDLE, Book, fold, hide_needle, read
from dcp_comm.cli.demo.embedding import DIM, HEADS, SCORE_BOUND, Embedding
from dcp_comm.cli.demo.exactness import wrong_tokens
from dcp_comm.cli.demo.inputs import FAR, FAR_AWAY
from dcp_comm.cli.demo.memory import Budget, OverBudget
from dcp_comm.cli.demo.outcome import Options
from dcp_comm.cli.demo.reference import answer
from dcp_comm.cli.demo.requests import Segment, step
from dcp_comm.cli.demo.scoring import STALE, score
from dcp_comm.cli.options import UsageError
from dcp_comm.sharding import Shard
from tests import oracle
from tests.cli.demo_text import drawn_words, write_text

CPU = torch.device("cpu")


def a_book(words: int = 600) -> Book:
    return hide_needle("drawn", drawn_words(words), 0.5)


def unsharded(segment: Segment) -> torch.Tensor:
    """Scores of a segment of one part, in whole numbers: int64 (rows, n)."""
    (part,) = segment.parts
    heads = torch.einsum("thd,nd->thn", part.queries.long(), part.keys.long()).clamp(min=0)
    return (part.weights.long()[:, :, None] * heads).sum(1)


def test_the_default_text_ships_with_the_interpreter() -> None:
    title, words = read(None)
    assert title == "Python's documentation topics"
    assert len(words) > 50_000


@pytest.mark.parametrize(("depth", "first"), [(0, 0), (0.5, 50), (1, 100)])
def test_the_needle_is_hidden_at_its_depth(depth: float, first: int) -> None:
    book = hide_needle("", drawn_words(100), depth)
    assert book.needle == range(first, first + len(NEEDLE.split()))
    assert " ".join(book.words[place] for place in book.needle) == NEEDLE
    assert len(book.words) == 100 + len(book.needle)


def test_words_are_folded() -> None:
    assert [fold(word) for word in ("Key,", '("key")', "KEY", "*", "a.b")] == [
        "key",
        "key",
        "key",
        "*",
        "a.b",
    ]


def test_texts_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--text: .*absent"):
        read(str(tmp_path / "absent"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(UsageError, match=r"--text: .*utf-8"):
        read(str(tmp_path / "binary"))
    short = write_text(tmp_path / "short", words=255)
    with pytest.raises(UsageError, match=r"has 255 words, but --k 64 .* needs 256"):
        open_book(Options(k=64, rows=16, text=short))


def test_hashing_is_the_same_in_every_process() -> None:
    code = (
        "import torch; from dcp_comm.cli.demo.embedding import Embedding;"
        "keys = Embedding(['brass', 'key'], torch.device('cpu')).keys(['key', 'brass', 'key']);"
        "print(keys.int().flatten().tolist())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    keys = Embedding(["brass", "key"], CPU).keys(["key", "brass", "key"])
    assert printed == {f"{keys.int().flatten().tolist()}\n"}


def test_a_key_takes_in_the_words_before() -> None:
    model = Embedding(["a", "b", "c", "d", "e"], CPU)
    one = {word: model.keys([word])[0] / 8 for word in "abcde"}
    keys = model.keys(list("abcde"))
    assert torch.equal(keys[1], 8 * one["b"] + 4 * one["a"])
    assert torch.equal(keys[4], 8 * one["e"] + 4 * one["d"] + 2 * one["c"] + one["b"])


def test_a_query_asks_for_the_words_before_by_rarity() -> None:
    words = ["common"] * 40 + ["rare", "common"]
    model = Embedding(words, CPU)
    queries, weights = model.queries(words, [0, 41])
    assert queries.shape == (2, HEADS, DIM)
    assert weights[0].tolist() == [10, 0, 0, 0, 0, 0, 0, 0]
    assert weights[1].tolist() == [10, 15, 10, 10, 10, 10, 10, 10]
    assert torch.equal(queries[1, 1], model.keys(["rare"])[0] / 8)


def test_no_score_can_leave_what_float32_holds() -> None:
    """The largest query, key and weight there can be stay below the bound."""
    most = embedding.COMPONENT
    dot = DIM * most * most * sum(embedding.CONTEXT)
    assert dot * embedding.RAREST * HEADS < SCORE_BOUND <= 2**24
    model = Embedding(drawn_words(500), CPU)
    keys, (queries, weights) = (
        model.keys(drawn_words(500)),
        model.queries(drawn_words(500), range(500)),
    )
    assert keys.abs().max() <= most * sum(embedding.CONTEXT)
    assert queries.abs().max() <= most
    assert weights.max() <= embedding.RAREST
    for tensor in (keys, queries, weights):
        assert torch.equal(tensor, tensor.round())


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(16, 1500))
def test_the_step_has_the_rows_asked_for(rows: int) -> None:
    segments = step(a_book(6000), rows, CPU)
    assert [segment.name for segment in segments] == ["prefill", "decode", "question"]
    assert sum(segment.rows for segment in segments) == rows + 1
    assert segments[1].rows % 2 == 0


def test_rows_see_what_came_before_them() -> None:
    book = a_book()
    prefill, decode, question = step(book, 60, CPU)
    end, chapter, opening = (part.lengths.tolist() for part in prefill.parts)
    assert end == list(range(len(book.words) - len(end) + 1, len(book.words) + 1))
    assert chapter[-1] == len(prefill.parts[1].keys) < len(book.words)
    assert opening == list(range(1, len(opening) + 1))
    lengths = decode.parts[0].lengths.view(-1, 2)
    assert (lengths[:, 1] - lengths[:, 0] == 1).all()
    assert lengths.max() == len(book.words)
    assert question.parts[0].lengths.tolist() == [len(book.words)]


@pytest.mark.parametrize(("size", "interleave"), [(1, 1), (2, 1), (3, 4), (4, 1000)])
def test_ranks_score_their_own_tokens_exactly(size: int, interleave: int) -> None:
    decode = step(a_book(), 60, CPU)[1]
    whole = unsharded(decode)
    tokens = 0
    for rank in range(size):
        shard = Shard(rank, size, interleave)
        logits = score(decode, shard)
        own = shard.global_index(torch.arange(logits.scores.shape[1]))
        assert torch.equal(logits.scores.long(), whole[:, own])
        assert torch.equal(logits.lengths, shard.local_length(decode.parts[0].lengths))
        tokens += len(own)
    assert tokens == whole.shape[1]


def test_packed_requests_stand_side_by_side() -> None:
    prefill = step(a_book(), 60, CPU)[0]
    shard = Shard(1, 2, 4)
    logits = score(prefill, shard)
    row = column = 0
    for part in prefill.parts:
        rows = slice(row, row + len(part.lengths))
        width = shard.local_length(len(part.keys))
        own = logits.scores[rows, column : column + width]
        assert (own < STALE).all()
        assert (logits.scores[rows] == STALE).sum() == logits.scores[rows].numel() - own.numel()
        assert (logits.starts[rows] == column).all()
        row, column = rows.stop, column + width
    assert (row, column) == logits.scores.shape


def test_the_plain_answer_is_the_oracles() -> None:
    decode = step(a_book(), 60, CPU)[1]
    scores, lengths = unsharded(decode), decode.parts[0].lengths
    answers = answer((decode,), 50, 0, 1)
    want, _ = oracle.topk(scores.float().numpy(), lengths.numpy(), 50)
    assert np.array_equal(answers.exact.numpy(), want)
    seen = scores.masked_fill(torch.arange(scores.shape[1]) >= lengths[:, None], 0)
    sea = seen.amax(1, keepdim=True) // 2
    want, _ = oracle.topk((scores - sea).clamp(min=0).float().numpy(), lengths.numpy(), 50)
    assert np.array_equal(answers.plateau.numpy(), want)
    assert (answers.largest, answers.whole) == (float(seen.max()), True)


@pytest.mark.parametrize("every", [2, 3, 7, 100])
def test_ranks_share_the_plain_answer(every: int) -> None:
    segments = step(a_book(), 20, CPU)
    whole = answer(segments, 5, 0, 1).exact
    for first in range(every):
        assert torch.equal(answer(segments, 5, first, every).exact, whole[first::every])


@pytest.mark.parametrize(
    ("selected", "answer", "wrong"),
    [
        ([3, 1, 2], [1, 2, 3], 0),
        ([3, 1, -1], [1, 3, -1], 0),
        ([1, 2, 4], [1, 2, 3], 1),
        ([1, 2, -1], [1, 2, 3], 1),
        ([1, 2, 3], [1, 2, -1], 1),
        ([1, 1, 1], [1, 2, 3], 2),
        ([-1, -1, -1], [1, 2, 3], 3),
        ([-1, -1, -1], [-1, -1, -1], 0),
        ([1, 2, 3, 4, 5, 5, -1], [1, 2, 3], 2),
        ([4, 5, 6, 7], [1, -1, -1], 4),
    ],
)
def test_wrong_tokens_are_counted(selected: list[int], answer: list[int], wrong: int) -> None:
    got = torch.tensor([selected] * 2, dtype=torch.int32)
    assert wrong_tokens(got, torch.tensor([answer] * 2, dtype=torch.int32)).tolist() == [wrong] * 2


@given(
    size=st.integers(2, 9),
    interleave=st.integers(1, 5000),
    token=st.integers(0, 2**20),
    data=st.data(),
)
def test_far_tokens_keep_their_ranks(
    size: int, interleave: int, token: int, data: st.DataObject
) -> None:
    """What is moved beyond 2^24 is a whole number of deals away."""
    offset = FAR.offset(Shard(data.draw(st.integers(0, size - 1)), size, interleave))
    assert FAR_AWAY <= offset < FAR_AWAY + size * interleave
    assert Shard(0, size, interleave).owner(token + offset) == Shard(0, size, interleave).owner(
        token
    )


def test_a_budget_gives_no_more_than_its_cap() -> None:
    budget = Budget(1000)
    assert budget(600, CPU).numel() == 600
    with pytest.raises(OverBudget, match="fails at its copy: 404 bytes wanted, 400 left"):
        budget.floats("its copy", (101,), CPU)
    assert budget.floats("its copy", (10, 10), CPU).shape == (10, 10)
    assert budget.given == 1000


def test_the_question_shares_its_words_with_the_needle() -> None:
    shared = set(map(fold, corpus.QUESTION.split())) & set(map(fold, NEEDLE.split()))
    assert {"brass", "lighthouse", "flowerpot"} <= shared
