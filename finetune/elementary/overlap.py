"""Word overlap: how much two texts have in common, in some twenty numbers, then a linear model."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from finetune.elementary.bags import Answerer, Training, fit_chosen, words
from finetune.task.interface import Example

CHARACTERS = 3
"""Characters of an n-gram: forms of one word share some of them."""
INVERSES = (0.1, 1.0, 10.0)
"""Inverse penalties to choose from."""
_NEGATION = re.compile(
    r"\b(?:no|not|never|nobody|nothing|none|neither|nor|nowhere|without|cannot)\b|n['’]t\b",
    re.IGNORECASE,
)

T = TypeVar("T")
Weight = Callable[[str], float]
"""Word -> how much it counts."""


class _Parts(NamedTuple):
    """A text as overlap sees it."""

    words: frozenset[str]
    bigrams: frozenset[tuple[str, str]]
    characters: frozenset[str]
    length: int
    """Words, those that are there twice counted twice."""
    is_negated: bool


def _parts(text: str) -> _Parts:
    found = words(text)
    line = f" {' '.join(found)} "
    starts = range(len(line) - CHARACTERS + 1)
    return _Parts(
        frozenset(found),
        frozenset(pairwise(found)),
        frozenset(line[start : start + CHARACTERS] for start in starts),
        len(found),
        _NEGATION.search(text) is not None,
    )


def fit_overlap(training: Training) -> Answerer:
    """Fit a linear model on what the two texts of each example have in common.

    Raises:
        DataError: There is only one class.
    """
    from sklearn.preprocessing import StandardScaler

    texts = [text for example in training.examples for text in example.texts]
    weight = inverse_document_frequency(texts)
    features = _matrix(training.examples, weight)
    scaler = StandardScaler().fit(features)
    model = fit_chosen(training, scaler.transform(features), INVERSES)
    return lambda examples: model(scaler.transform(_matrix(examples, weight)))


def inverse_document_frequency(texts: Sequence[str]) -> Weight:
    """How rare a word is: log((1 + N) / (1 + n)) + 1, where n of N texts have it.

    That is the smoothed formula of scikit-learn's `TfidfTransformer`.
    """
    counts = Counter(word for text in texts for word in set(words(text)))
    weights = {word: math.log((1 + len(texts)) / (1 + n)) + 1 for word, n in counts.items()}
    unseen = math.log(1 + len(texts)) + 1
    return lambda word: weights.get(word, unseen)


def _matrix(examples: Sequence[Example], weight: Weight) -> npt.NDArray[np.float64]:
    parts = lru_cache(maxsize=10_000)(_parts)  # a premise or a passage comes several times
    rows = [pair_features(parts(one.texts[0]), parts(one.texts[1]), weight) for one in examples]
    return np.array(rows, dtype=float)


def pair_features(first: _Parts, second: _Parts, weight: Weight) -> list[float]:
    """The features of a pair: overlaps, lengths and negations."""

    def summed(some: AbstractSet[str]) -> float:
        return sum(map(weight, some))

    shorter, longer = sorted((first.length, second.length))
    return [
        *_overlaps(first.words, second.words, len),
        *_overlaps(first.words, second.words, summed),
        *_overlaps(first.characters, second.characters, len),
        *_overlaps(first.bigrams, second.bigrams, len),
        math.log1p(first.length),
        math.log1p(second.length),
        _ratio(shorter, longer),
        longer - shorter,
        first.is_negated,
        second.is_negated,
        first.is_negated != second.is_negated,
    ]


def _overlaps(
    first: AbstractSet[T], second: AbstractSet[T], size: Callable[[AbstractSet[T]], float]
) -> tuple[float, float, float]:
    """What is in both, as a fraction of the first, of the second, and of what is in either."""
    both, one, other = size(first & second), size(first), size(second)
    return _ratio(both, one), _ratio(both, other), _ratio(both, one + other - both)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
