"""Answers in a passage by two logistic regressions: over first words and over last words.

The features are of the kind that the baseline of SQuAD has (Rajpurkar et al., 2016, section 5.1):
how much of the question is near a word and in its sentence, the words and shapes around it, and
these with the question's own words (`who`, `how many`). There is no parser: a span of words scores
what its first and its last word score, and how usual its length is among the training answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from finetune.elementary.bags import Training
from finetune.elementary.overlap import Weight, inverse_document_frequency
from finetune.errors import DataError
from finetune.task.interface import Example, GoldAnswer, Outputs
from finetune.text.features.pairs import Features

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
AnswererOfSpans = Callable[[Sequence[Example]], tuple[Outputs, list[Features]]]
"""Examples -> outputs as those of a span head, and the windows that they are of."""

COLUMNS = 2**18
"""Features are hashed into so many columns."""
LONGEST = 12
"""Words of an answer at most; the shorter ones are 97 % of SQuAD's."""
CANDIDATES = 20
"""Spans of a question that are listed."""
NEGATIVES = 16
"""Words of a passage that are trained on besides the right one: each so many-th part of it."""
NEAR = (3, 8, 20)
"""Words before and after a word in which words of the question are looked for."""
INVERSE = 0.1
"""Inverse penalty."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_ASKING = frozenset("who whom whose what which when where why how".split())


class _Passage(NamedTuple):
    """A passage as the features see it: an entry for each of its T words and signs."""

    offsets: Ints
    """First character and the one after the last (T, 2)."""
    words: Ints
    """Hash of the word in lower case (T,)."""
    shapes: Ints
    """Hash of its shape: letters, capitals, digits, sign (T,)."""
    sentences: Ints
    """Number of its sentence (T,)."""
    weights: Floats
    """How rare it is, 0 for a word of every text (T,)."""


def fit_spans(training: Training) -> AnswererOfSpans:
    """Fit the two regressions to the questions that have an answer.

    Raises:
        DataError: No question has an answer of at most `LONGEST` words.
    """
    passages = dict.fromkeys(example.texts[1] for example in training.examples)
    rarity = inverse_document_frequency(list(passages))
    read = lru_cache(maxsize=64)(lambda text: _passage(text, rarity))  # its questions follow
    rows, lengths = _training_rows(training.examples, read, rarity)
    if not lengths:
        raise DataError("expected questions with an answer in their passage, got none")
    models = [_weights(features, labels) for features, labels in rows]
    counts = np.bincount(lengths, minlength=LONGEST + 1)[1:] + 1.0
    usual = np.log(counts / counts.sum())  # (LONGEST,)

    def answer(examples: Sequence[Example]) -> tuple[Outputs, list[Features]]:
        outputs = np.full((len(examples), CANDIDATES + 1, 3), -np.inf)
        windows = []
        for number, example in enumerate(examples):
            passage = read(example.texts[1])
            features = _features(example.texts[0], passage, rarity)  # (T, K)
            first, last = (weights[features].sum(axis=1) for weights in models)  # (T,)
            outputs[number, 0, 2] = 0.0  # no answer
            best = _best(first, last, usual)
            outputs[number, 1 : len(best) + 1] = best
            windows.append(_window(number, passage))
        return outputs, windows

    return answer


def _window(number: int, passage: _Passage) -> Features:
    """The whole passage, its words as tokens."""
    context = (0, len(passage.offsets))
    offsets = passage.offsets.astype(np.int32)
    return Features([], [], example=number, context=context, offsets=offsets)


def _best(first: Floats, last: Floats, usual: Floats) -> Floats:
    """First position, last position and score of the best spans, at most (CANDIDATES, 3)."""
    padded = np.concatenate([last, np.full(LONGEST, -np.inf)])
    ends = np.lib.stride_tricks.sliding_window_view(padded, LONGEST)[: len(last)]  # (T, LONGEST)
    scores = (first[:, None] + ends + usual).reshape(-1)
    order = np.argsort(-scores, kind="stable")[:CANDIDATES]
    order = order[np.isfinite(scores[order])]
    start = order // LONGEST
    return np.stack([start, start + order % LONGEST, scores[order]], axis=1)


def _passage(text: str, rarity: Weight) -> _Passage:
    matches = list(_TOKEN.finditer(text))
    tokens = [match.group() for match in matches]
    ends = [False, *(token in (".", "?", "!") for token in tokens)][: len(tokens)]
    return _Passage(
        np.array([match.span() for match in matches], dtype=np.int64).reshape(-1, 2),
        np.array([_hash(token.lower()) for token in tokens], dtype=np.int64),
        np.array([_hash(_shape(token)) for token in tokens], dtype=np.int64),
        np.cumsum(ends, dtype=np.int64),
        np.array([rarity(token.lower()) - 1 for token in tokens], dtype=float),
    )


@lru_cache(maxsize=100_000)
def _hash(text: str) -> int:
    return crc32(text.encode())


def _shape(token: str) -> str:
    """Its kind of characters; of numbers their digits, so that years are known.

    >>> from finetune.elementary.spans import _shape
    >>> [_shape(token) for token in ("Paris", "the", "1998", "USA", ",")]
    ['Xx', 'x', 'dddd', 'XX', ',']
    """
    if token[0].isdigit():
        return "d" * min(len(token), 5) if token.isdigit() else "d-"
    if not token[0].isalpha():
        return token[0]
    if token[0].islower():
        return "x"
    return "XX" if len(token) > 1 and token.isupper() else "Xx"


def _features(question: str, passage: _Passage, rarity: Weight) -> Ints:
    """The columns of the K features of each word of a passage (T, K)."""
    asked = _TOKEN.findall(question.lower())
    kind, kind_2 = _asking(asked)
    wanted = {_hash(word): max(0.0, rarity(word) - 1) for word in asked if word[0].isalnum()}
    is_wanted = np.isin(passage.words, np.fromiter(wanted, np.int64, len(wanted)))
    total = sum(wanted.values()) or 1.0
    hits = np.where(is_wanted, passage.weights, 0.0)
    known = is_wanted & (passage.weights > 0)
    parts = [
        *_around(passage.words, hits=None),
        *_around(passage.shapes, hits=None),
        *_around(passage.shapes, hits=kind),
        *_around(passage.shapes, hits=kind_2),
        *_around(passage.words, hits=kind),
        *_around(known.astype(np.int64), hits=kind),
        *(_binned(near / total) for near in _near(hits)),
        _binned(_of_sentence(passage, is_wanted) / total),
    ]
    salt = np.arange(1, len(parts) + 1, dtype=np.int64) * 0x9E3779B1
    mixed = (np.stack(parts, axis=1) + salt) * 0x85EBCA6B  # (T, K)
    return np.asarray((mixed ^ (mixed >> 15)) % COLUMNS)


def _asking(asked: Sequence[str]) -> tuple[int, int]:
    """The question's own word, and that with the next one: `how`, `how many`."""
    place = next((number for number, word in enumerate(asked) if word in _ASKING), None)
    if place is None:
        return 0, 0
    return _hash(asked[place]), _hash(" ".join(asked[place : place + 2]))


def _around(values: Ints, *, hits: int | None) -> list[Ints]:
    """What is at a word, before and after it; with a word of the question, if one is given."""
    padded = np.concatenate([[-1], values, [-1]])
    key = 0 if hits is None else hits * 31
    return [padded[place : place + len(values)] * 7 + key for place in range(3)]


def _near(hits: Floats) -> Iterator[Floats]:
    """Weights of the question's words just before, just after, and in wider windows (T,) each."""
    sums = np.concatenate([[0.0], np.cumsum(hits)])
    places, most = np.arange(len(hits)), len(hits)
    for width in NEAR:
        before = sums[places] - sums[np.maximum(0, places - width)]
        after = sums[np.minimum(most, places + 1 + width)] - sums[np.minimum(most, places + 1)]
        yield before
        yield after


def _of_sentence(passage: _Passage, is_wanted: npt.NDArray[np.bool_]) -> Floats:
    """Weights of the question's words in the sentence of each word, each word once (T,)."""
    rows = np.flatnonzero(is_wanted)
    pairs = np.stack([passage.sentences[rows], passage.words[rows]], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    rows = rows[first]
    most = int(passage.sentences[-1]) + 1 if len(passage.sentences) else 0
    sums = np.bincount(passage.sentences[rows], passage.weights[rows], minlength=most)
    return np.asarray(sums[passage.sentences])


def _binned(fractions: Floats) -> Ints:
    return np.digitize(fractions, np.linspace(0.0, 1.0, 11)[:-1], right=True)


def _training_rows(
    examples: Sequence[Example], read: Callable[[str], _Passage], rarity: Weight
) -> tuple[list[tuple[Ints, Ints]], list[int]]:
    """Features and labels for first words and for last words; words of each answer."""
    lengths: list[int] = []
    firsts: list[tuple[Ints, Ints]] = []
    lasts: list[tuple[Ints, Ints]] = []
    for example in examples:
        passage = read(example.texts[1])
        span = _gold(example, passage)
        if span is None:
            continue
        lengths.append(span[1] - span[0] + 1)
        features = _features(example.texts[0], passage, rarity)
        others = np.linspace(0, len(features) - 1, NEGATIVES).round().astype(np.int64)
        around = np.arange(max(0, span[0] - 3), min(len(features), span[1] + 4))
        rows = np.unique(np.concatenate([others, around]))
        for made, right in ((firsts, span[0]), (lasts, span[1])):
            made.append((features[rows], (rows == right).astype(np.int64)))
    if not lengths:
        return [], []
    together = [
        (np.concatenate([one for one, _ in made]), np.concatenate([one for _, one in made]))
        for made in (firsts, lasts)
    ]
    return together, lengths


def _gold(example: Example, passage: _Passage) -> tuple[int, int] | None:
    """First and last word of the first answer; None where there is none, or a long one."""
    label = example.label if isinstance(example.label, tuple) else ()
    answer = next((one for one in label if isinstance(one, GoldAnswer)), None)
    if answer is None:
        return None
    start, end = answer.start, answer.start + len(answer.text)
    inside = (passage.offsets[:, 1] > start) & (passage.offsets[:, 0] < end)
    words = np.flatnonzero(inside)
    return (int(words[0]), int(words[-1])) if 0 < len(words) <= LONGEST else None


def _weights(features: Ints, labels: Ints) -> Floats:
    """Weights of a logistic regression on features of which each is there or not (COLUMNS,)."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    rows, width = features.shape
    bounds = np.arange(0, rows * width + 1, width)
    ones = np.ones(rows * width)
    matrix = csr_matrix((ones, features.reshape(-1), bounds), shape=(rows, COLUMNS))
    model = LogisticRegression(C=INVERSE, solver="newton-cg", tol=1e-3).fit(matrix, labels)
    return np.asarray(model.coef_[0])
