"""Answers that are passages of a context, read off the best spans of its windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from finetune.task.interface import Answer, Example, Outputs
from finetune.text.features.pairs import Features

NO_SPAN_ODDS = 1e9
"""`null_odds` of a question for which there is no span to choose, as in an empty context: more
than logits ever differ by, and a number that JSON has."""

DIGITS = 6
"""Decimal places of scores and probabilities in a predictions file."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class _Spans(NamedTuple):
    """The spans of all windows, those of a question together and the best first (S,) each."""

    example: Ints
    start: Ints
    end: Ints
    score: Floats


class _Choices(NamedTuple):
    """A question's list, the best first."""

    entries: list[dict[str, Any]]
    """As in `nbest`; the probabilities come when all lists are made."""
    scores: list[float]


def span_answers(
    outputs: Outputs,
    examples: Sequence[Example],
    features: Sequence[Features],
    *,
    n_best: int,
    allow_null: bool,
) -> list[Answer]:
    """Read the answer to each question off all of its windows.

    The spans of a question's windows are listed together, the best first, each text once. "No
    answer" scores what the window that is least sure of it gives (Devlin et al., 2019, as
    released): one window that holds an answer is enough.

    Args:
        outputs: First position, last position and score of each window's spans, the first of them
            no answer, as `heads.Span.outputs` gives them (U, K, 3).
        examples: The N examples: question and context.
        features: The U windows, with their context's range and offsets.
        n_best: Texts that are listed for a question.
        allow_null: A question may have no answer. It is then answered by "" where `null_odds` is
            above 0, and "no answer" is one of the list.

    Returns:
        Rows `{"id", "prediction", "start", "end", "score", "null_odds", "nbest", "answers"}`:
        characters of the context (end exclusive; None for no answer); the prediction's score, a
        sum of two logits; the score of no answer less that of the best span; the list
        `{"text", "start", "end", "probability"}`; and the gold answers where they are known.
    """
    nulls = _null_scores(outputs, features, len(examples)).round(DIGITS).tolist()
    lists = []
    for example, null, spans in zip(
        examples, nulls, _by_example(outputs, features, len(examples)), strict=True
    ):
        choices = _distinct(example.texts[1], spans, n_best)
        if allow_null or not choices.entries:
            _insert_null(choices, null)
        lists.append(choices)
    _set_probabilities(lists)
    threshold = 0.0 if allow_null else np.inf
    return [
        _answer(example, null, choices, threshold)
        for example, null, choices in zip(examples, nulls, lists, strict=True)
    ]


def decide_null(answers: Sequence[Answer], threshold: float) -> list[Answer]:
    """Decide again which questions have no answer.

    Args:
        answers: Rows of `span_answers` with `allow_null`, whatever threshold they were decided by.
        threshold: A question has no answer where `null_odds` is above this.

    Returns:
        New rows that differ in `prediction`, `start`, `end` and `score` alone.
    """
    return [row | _decision(row, threshold) for row in answers]


def _decision(row: Answer, threshold: float) -> Answer:
    odds = row["null_odds"]
    empty = not row["prediction"]
    span = next((choice for choice in row["nbest"] if choice["text"]), None)
    if span is None or odds > threshold:
        score = row["score"] if empty else round(row["score"] + odds, DIGITS)
        return {"prediction": "", "start": None, "end": None, "score": score}
    score = round(row["score"] - odds, DIGITS) if empty else row["score"]
    return {
        "prediction": span["text"],
        "start": span["start"],
        "end": span["end"],
        "score": score,
    }


def _null_scores(outputs: Outputs, features: Sequence[Features], count: int) -> Floats:
    """The lowest score of no answer over the windows of each question (N,)."""
    lowest = np.full(count, np.inf)
    np.minimum.at(lowest, _numbers(features), outputs[:, 0, 2])
    return lowest


def _numbers(features: Sequence[Features]) -> Ints:
    return np.array([feature.example for feature in features], dtype=np.int64)


def _by_example(
    outputs: Outputs, features: Sequence[Features], count: int
) -> Iterator[Iterable[tuple[int, int, float]]]:
    """First character, the one after the last, and score of each question's spans, best first."""
    spans = _in_order(outputs, features)
    bounds = np.searchsorted(spans.example, np.arange(count + 1)).tolist()
    starts, ends = spans.start.tolist(), spans.end.tolist()
    scores = spans.score.round(DIGITS).tolist()
    for part in (slice(*pair) for pair in pairwise(bounds)):
        yield zip(starts[part], ends[part], scores[part], strict=True)


def _in_order(outputs: Outputs, features: Sequence[Features]) -> _Spans:
    """Turn positions of windows into characters of contexts, and sort the spans."""
    scores = outputs[:, 1:, 2].astype(np.float64)  # (U, K - 1)
    window, place = np.nonzero(np.isfinite(scores))  # (S,)
    positions = outputs[window, place + 1, :2].astype(np.int64)  # (S, 2)
    start, end = _characters(positions, window, features)
    example, score = _numbers(features)[window], scores[window, place]
    order = np.lexsort((end, start, -score, example))
    return _Spans(example[order], start[order], end[order], score[order])


def _characters(positions: Ints, window: Ints, features: Sequence[Features]) -> tuple[Ints, Ints]:
    """First character of each span and the one after its last, (S, 2) and (S,) -> (S,) twice."""
    ranges = np.array([feature.context for feature in features], dtype=np.int64).reshape(-1, 2)
    offsets = np.concatenate(
        [np.empty((0, 2), np.int32), *(f.offsets for f in features if f.offsets is not None)]
    )
    sizes = ranges[:, 1] - ranges[:, 0]
    # All offsets stand in one array: a position of a window is this much further on in it.
    shift = np.cumsum(sizes) - sizes - ranges[:, 0]
    tokens = positions + shift[window, None]
    return offsets[tokens[:, 0], 0].astype(np.int64), offsets[tokens[:, 1], 1].astype(np.int64)


def _distinct(context: str, spans: Iterable[tuple[int, int, float]], n_best: int) -> _Choices:
    """The first spans of different texts, at most `n_best`.

    A text with white space at an end is passed over: it has a token there that stands for nothing
    else, and without that token it is a span, too.
    """
    seen = set()
    choices = _Choices([], [])
    for start, end, score in spans:
        text = context[start:end]
        if text and text not in seen and text == text.strip():
            seen.add(text)
            choices.entries.append({"text": text, "start": start, "end": end})
            choices.scores.append(score)
            if len(seen) == n_best:
                break
    return choices


def _insert_null(choices: _Choices, null: float) -> None:
    place = sum(score >= null for score in choices.scores)
    choices.entries.insert(place, {"text": "", "start": None, "end": None})
    choices.scores.insert(place, null)


def _set_probabilities(lists: Sequence[_Choices]) -> None:
    """Softmax over the scores of each list, none of which is empty."""
    if not lists:
        return
    bounds = np.cumsum([0, *(len(choices.scores) for choices in lists)])
    sizes = np.diff(bounds)
    scores = np.array([score for choices in lists for score in choices.scores])
    odds = np.exp(scores - np.repeat(np.maximum.reduceat(scores, bounds[:-1]), sizes))
    probabilities = odds / np.repeat(np.add.reduceat(odds, bounds[:-1]), sizes)
    entries = (entry for choices in lists for entry in choices.entries)
    for entry, probability in zip(entries, probabilities.round(DIGITS).tolist(), strict=True):
        entry["probability"] = probability


def _answer(example: Example, null: float, choices: _Choices, threshold: float) -> Answer:
    best = next((place for place, entry in enumerate(choices.entries) if entry["text"]), None)
    score = null if best is None else choices.scores[best]
    row = {
        "id": example.id,
        "prediction": "",
        "start": None,
        "end": None,
        "score": null,
        "null_odds": NO_SPAN_ODDS if best is None else round(null - score, DIGITS),
        "nbest": choices.entries,
    }
    row |= _decision(row, threshold)
    if isinstance(example.label, tuple):
        row["answers"] = [_gold(answer) for answer in example.label]
    return row


def _gold(answer: Any) -> dict[str, Any]:
    return {"text": answer.text, "start": answer.start}
