"""What two texts have in common, in numbers that were computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from finetune.elementary.bags import Training
from finetune.elementary.linear import folds
from finetune.elementary.overlap import (
    INVERSES,
    _matrix,
    _parts,
    fit_overlap,
    inverse_document_frequency,
    pair_features,
)
from finetune.task.interface import Example
from tests.made.texts import sentences

NAMES = ("different", "same")


def features(first: str, second: str, weights: dict[str, float] | None = None) -> list[float]:
    return pair_features(_parts(first), _parts(second), lambda word: (weights or {}).get(word, 1))


def test_features_are_those_computed_by_hand() -> None:
    row = features("the red cat", "The cat, the dog.", {"cat": 3.0, "the": 0.5})
    words, weighted, bigrams = row[:3], row[3:6], row[9:12]
    assert words == pytest.approx([2 / 3, 2 / 3, 2 / 4])  # the, cat of {the red cat}, {the cat dog}
    assert weighted == pytest.approx([3.5 / 4.5, 3.5 / 4.5, 3.5 / 5.5])
    assert bigrams == pytest.approx([0, 0, 0])
    assert row[12:] == pytest.approx([math.log(4), math.log(5), 3 / 4, 1, 0, 0, 0])


def test_forms_of_a_word_share_characters() -> None:
    # " cat ": " ca", "cat", "at "; " cats ": " ca", "cat", "ats", "ts ".
    assert features("cat", "cats")[6:9] == pytest.approx([2 / 3, 2 / 4, 2 / 5])


@pytest.mark.parametrize(
    "text", ["It is not so", "It isn't so", "It isn’t", "Nobody came", "ca n't"]
)
def test_negations_are_known(text: str) -> None:
    assert features(text, "it is so")[-3:] == [True, False, True]
    assert features(text, text)[-3:] == [True, True, False]


def test_empty_texts_have_nothing_in_common() -> None:
    assert features("", "?")[:12] == [0.0] * 12


def test_rare_words_weigh_more() -> None:
    weight = inverse_document_frequency(["the cat", "the dog"])
    assert weight("the") == pytest.approx(1)
    assert weight("cat") == pytest.approx(math.log(3 / 2) + 1)
    assert weight("bird") == pytest.approx(math.log(3) + 1)


def test_model_is_logistic_regression_on_standardized_features() -> None:
    texts = sentences(1, 80)
    pairs = [
        (text, text[: len(text) // 2] if n % 2 else texts[n - 1]) for n, text in enumerate(texts)
    ]
    train = [Example(n, pair, NAMES[n % 2]) for n, pair in enumerate(pairs)]
    labels = [str(one.label) for one in train]
    weight = inverse_document_frequency([text for pair in pairs for text in pair])
    matrix = StandardScaler().fit_transform(_matrix(train, weight))
    model = LogisticRegression(tol=1e-9, max_iter=10_000)
    search = GridSearchCV(model, {"C": INVERSES}, cv=list(folds(labels)))
    scores = search.fit(matrix, labels).decision_function(matrix)
    logits = fit_overlap(Training(train, NAMES))(train)
    assert logits[:, 1] - logits[:, 0] == pytest.approx(scores, abs=1e-4)
    assert (np.array(NAMES)[logits.argmax(1)] == labels).mean() > 0.9
