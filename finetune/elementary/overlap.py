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

from finetune.elementary import linear
from finetune.elementary.bags import Answerer, words
from finetune.task.interface import Example, Label

CHARACTERS = 3
"""Characters of an n-gram: forms of one word share some of them."""
INVERSE = 1.0
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


def fit_overlap(
    train: Sequence[Example], labels: Sequence[Label], names: Sequence[str]
) -> Answerer:
    """Fit a linear model on what the two texts of each example have in common.

    Args:
        train: The N training examples, pairs.
        labels: Theirs.
        names: The classes in the order of the logits; empty for numbers.

    Returns:
        What answers further examples.

    Raises:
        DataError: There is only one class.
    """
    from sklearn.preprocessing import StandardScaler

    weight = inverse_document_frequency([text for example in train for text in example.texts])
    features = _matrix(train, weight)
    scaler = StandardScaler().fit(features)
    model = linear.fit(scaler.transform(features), labels, names, inverse=INVERSE)
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
