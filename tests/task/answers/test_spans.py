from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.heads import HeadConfig, Span, SpanConfig
from finetune.task.answers.spans import NO_SPAN_ODDS, decide_null, span_answers
from finetune.task.interface import Answer, Example, GoldAnswer
from finetune.text.features.pairs import Features, collate
from finetune.text.features.windows import WindowConfig, encode_windows
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.text.tokenizer.vocabulary import TokenizerConfig, train_tokenizer
from tests.made.nets import tiny_config

CONTEXTS = [
    "the cat sat on the mat and the dog sat on the cat",
    "naïve 😀 café, שלום e\u0301!",
    "",
    "dog",
    "the the the the the the the the the the the the the the",
    " \n ",
]
CUT = WindowConfig(stride=3, max_question_length=4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(
        [*CONTEXTS, "who is it?"] * 2, TokenizerConfig(algorithm="bpe", vocab_size=280)
    )


def asked(contexts: list[str]) -> list[Example]:
    return [Example(f"q{i}", ("who is it?", context)) for i, context in enumerate(contexts)]


def cut(tokenizer: Tokenizer, contexts: list[str], max_length: int = 16) -> list[Features]:
    questions = ["who is it?"] * len(contexts)
    return encode_windows(
        tokenizer, questions, contexts, max_length, CUT, answers=None, training=False, drop=True
    )


def read(
    features: list[Features],
    examples: list[Example],
    seed: int,
    n_best: int,
    longest: int,
    **options: Any,
) -> tuple[list[Answer], list[torch.Tensor]]:
    """Answers from random logits, and the logits."""
    config = tiny_config(vocab_size=8, hidden_size=8)
    head = Span(config, HeadConfig(), SpanConfig(n_best, longest))
    generator = torch.Generator().manual_seed(seed)
    logits, outputs = [], []
    for start in range(0, len(features), 3):  # the last batch may be smaller
        batch = collate(features, range(start, min(start + 3, len(features))), pad_token_id=0)
        drawn = torch.randn(*batch["input_ids"].shape, 2, generator=generator)
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"], dtype=torch.bool))
        drawn = drawn.masked_fill(~mask[..., None], torch.finfo().min)
        outputs.append(head.outputs(drawn, batch))
        logits += list(drawn)
    gathered = torch.cat(outputs).numpy()
    return span_answers(gathered, examples, features, n_best=n_best, **options), logits


def slow_answer(
    context: str, windows: list[tuple[Features, torch.Tensor]], n_best: int, longest: int
) -> tuple[float, list[tuple[str, float]]]:
    """The lowest score of no answer, and the best texts, by looking at every span."""
    best: dict[str, float] = {}
    for window, logits in windows:
        assert window.context is not None
        assert window.offsets is not None
        low, high = window.context
        for first in range(low, high):
            for last in range(first, min(high, first + longest)):
                start, end = window.offsets[first - low, 0], window.offsets[last - low, 1]
                text = context[start:end]
                if text.strip() and text.strip() == text:
                    score = (logits[first, 0] + logits[last, 1]).item()
                    best[text] = max(score, best.get(text, -math.inf))
    null = min((logits[0, 0] + logits[0, 1]).item() for _, logits in windows)
    ranked = sorted(best.items(), key=lambda entry: -entry[1])
    return null, ranked[:n_best]


@settings(deadline=None, max_examples=60)
@given(
    contexts=st.lists(st.sampled_from(CONTEXTS), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    longest=st.integers(1, 9),
    allow_null=st.booleans(),
)
def test_answers_are_those_of_a_search_over_all_spans_of_all_windows(
    tokenizer: Tokenizer, contexts: list[str], seed: int, longest: int, allow_null: bool
) -> None:
    features, examples = cut(tokenizer, contexts), asked(contexts)
    # As many as a window has, so that equal texts in a window cannot crowd others out.
    answers, logits = read(features, examples, seed, 150, longest, allow_null=allow_null)
    for number, (context, answer) in enumerate(zip(contexts, answers, strict=True)):
        own = [pair for pair in zip(features, logits, strict=True) if pair[0].example == number]
        null, ranked = slow_answer(context, own, 150, longest)
        assert answer["id"] == f"q{number}"
        spans = [entry for entry in answer["nbest"] if entry["text"]]
        assert [entry["text"] for entry in spans] == [text for text, _ in ranked]
        assert all(context[entry["start"] : entry["end"]] == entry["text"] for entry in spans)
        assert len(answer["nbest"]) - len(spans) == (allow_null or not ranked)
        shown = [score for _, score in ranked] + [null] * (allow_null or not ranked)
        odds = np.exp(sorted(shown, reverse=True))
        shares = [entry["probability"] for entry in answer["nbest"]]
        np.testing.assert_allclose(shares, odds / odds.sum(), atol=1e-5)
        if not ranked:
            assert answer["prediction"] == ""
            assert answer["null_odds"] == NO_SPAN_ODDS
            continue
        assert answer["null_odds"] == pytest.approx(null - ranked[0][1], abs=1e-5)
        empty = allow_null and null > ranked[0][1]
        assert answer["prediction"] == ("" if empty else ranked[0][0])
        assert answer["score"] == pytest.approx(null if empty else ranked[0][1], abs=1e-5)
        assert (answer["start"] is None) == (answer["end"] is None) == empty


@pytest.mark.parametrize("allow_null", [True, False])
def test_answers_are_legal_json_and_each_list_sums_to_one(
    tokenizer: Tokenizer, allow_null: bool
) -> None:
    features = cut(tokenizer, CONTEXTS)
    answers, _ = read(features, asked(CONTEXTS), 0, 5, 4, allow_null=allow_null)
    json.dumps(answers, allow_nan=False)
    for answer in answers:
        assert list(answer) == [
            "id", "prediction", "start", "end", "score", "null_odds", "nbest",
        ]  # fmt: skip
        assert len(answer["nbest"]) <= 5 + allow_null
        assert sum(entry["probability"] for entry in answer["nbest"]) == pytest.approx(1, abs=1e-5)
    assert answers[2]["nbest"] == [{"text": "", "start": None, "end": None, "probability": 1.0}]


def windows_of(*examples: int) -> list[Features]:
    """Windows of four words each, whose context begins at position 2."""
    offsets = np.array([[0, 3], [4, 7], [8, 11], [12, 15]], dtype=np.int32)
    return [
        Features([0] * 7, [0] * 7, example=number, context=(2, 6), offsets=offsets)
        for number in examples
    ]


WORDS = Example("w", ("?", "one two one six"))
MISSING = [-1.0, -1.0, -math.inf]


def outputs_of(*windows: list[list[float]]) -> Any:
    return np.array(windows, dtype=np.float32)


def test_a_text_is_listed_once_with_its_best_score() -> None:
    outputs = outputs_of(
        [[0, 0, 9], [4, 4, 5], [3, 3, 3], [2, 2, 2]],
        [[0, 0, 4], [2, 2, 6], [3, 3, 1], MISSING],
    )
    (answer,) = span_answers(outputs, [WORDS], windows_of(0, 0), n_best=9, allow_null=False)
    entries = [(entry["text"], entry["start"], entry["end"]) for entry in answer["nbest"]]
    assert entries == [("one", 0, 3), ("two", 4, 7)]
    assert (answer["prediction"], answer["score"]) == ("one", 6)
    assert answer["null_odds"] == 4 - 6  # the lowest score of no answer over the windows


def test_no_answer_stands_in_the_list_at_its_place_and_beside_n_best_texts() -> None:
    outputs = outputs_of([[0, 0, 4], [2, 2, 5], [3, 3, 3], [5, 5, 2]])
    (answer,) = span_answers(outputs, [WORDS], windows_of(0), n_best=2, allow_null=True)
    assert [entry["text"] for entry in answer["nbest"]] == ["one", "", "two"]


def test_windows_need_not_stand_in_the_order_of_their_questions() -> None:
    outputs = outputs_of([[0, 0, 1], [2, 2, 2]], [[0, 0, 3], [3, 3, 7]], [[0, 0, 0], [5, 5, 4]])
    answers = span_answers(outputs, [WORDS, WORDS], windows_of(1, 0, 1), n_best=1, allow_null=False)
    assert [answer["prediction"] for answer in answers] == ["two", "six"]
    assert [answer["null_odds"] for answer in answers] == [-4, -4]


def test_gold_answers_are_written_where_they_are_known() -> None:
    golds: list[Any] = [None, (), (GoldAnswer("two", 4), GoldAnswer("six", 12))]
    examples = [Example(i, WORDS.texts, label) for i, label in enumerate(golds)]
    outputs = outputs_of(*[[[0, 0, 1], [2, 2, 2]]] * 3)
    answers = span_answers(outputs, examples, windows_of(0, 1, 2), n_best=1, allow_null=True)
    assert [answer.get("answers") for answer in answers] == [
        None, [], [{"text": "two", "start": 4}, {"text": "six", "start": 12}],
    ]  # fmt: skip


def test_a_text_with_white_space_at_an_end_is_no_answer() -> None:
    offsets = np.array([[0, 3], [4, 4]], dtype=np.int32)  # the second token was a space
    window = Features([0] * 5, [0] * 5, example=0, context=(2, 4), offsets=offsets)
    outputs = outputs_of([[0, 0, 0], [2, 3, 9], [3, 3, 8], [2, 2, 1]])
    (answer,) = span_answers(outputs, [WORDS], [window], n_best=3, allow_null=False)
    assert [entry["text"] for entry in answer["nbest"]] == ["one"]


def test_no_questions_have_no_answers() -> None:
    nothing = np.empty((0, 3, 3), dtype=np.float32)
    assert span_answers(nothing, [], [], n_best=2, allow_null=True) == []


def test_the_threshold_decides_which_questions_have_no_answer(tokenizer: Tokenizer) -> None:
    features = cut(tokenizer, CONTEXTS)
    answers, _ = read(features, asked(CONTEXTS), 3, 5, 4, allow_null=True)
    plain, _ = read(features, asked(CONTEXTS), 3, 5, 4, allow_null=False)
    assert decide_null(answers, 0.0) == answers
    every = decide_null(answers, math.inf)
    for row, best in zip(every, plain, strict=True):
        assert row["prediction"] == best["prediction"]
        assert row["score"] == pytest.approx(best["score"], abs=2e-6)
    none = decide_null(answers, -math.inf)
    assert {(row["prediction"], row["start"], row["end"]) for row in none} == {("", None, None)}
    middle = sorted(row["null_odds"] for row in answers)[2]
    for row in decide_null(answers, middle):
        assert (row["prediction"] == "") == (row["null_odds"] > middle)


def test_a_decision_can_be_taken_back(tokenizer: Tokenizer) -> None:
    answers, _ = read(cut(tokenizer, CONTEXTS), asked(CONTEXTS), 3, 5, 4, allow_null=True)
    before = json.dumps(answers)
    there = decide_null(decide_null(answers, math.inf), -math.inf)
    back = decide_null(there, 0.0)
    for found, row in zip(back, answers, strict=True):
        assert found["score"] == pytest.approx(row["score"], abs=2e-6)
        assert found | {"score": None} == row | {"score": None}
    assert json.dumps(answers) == before  # the rows that came in are as they were
