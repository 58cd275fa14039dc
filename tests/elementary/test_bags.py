"""Bag of words against scikit-learn's own pipeline, and naive Bayes against hand-made counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge

from finetune.elementary import bags
from finetune.elementary.bags import fields_of, fit_naive_bayes, fit_tfidf, log_count_ratios, words
from finetune.errors import DataError
from finetune.task.interface import Example
from tests.made.texts import has_the, sentences


def examples(seed: int, count: int) -> list[Example]:
    return [
        Example(number, (text,), ("without", "with")[has_the(text)])
        for number, text in enumerate(sentences(seed, count))
    ]


TRAIN, REST = examples(1, 200), examples(2, 40)
LABELS = [str(one.label) for one in TRAIN]
NAMES = ("with", "without")


def test_words_are_of_letters_and_digits_of_every_script() -> None:
    assert words("It's 3 o'clock, Ñandú_x!") == "it s 3 o clock ñandú x".split()
    assert words("東京に") == ["東", "京", "に"]
    assert words("?! —") == []


def test_tfidf_is_the_pipeline_of_scikit_learn() -> None:
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b"
    )
    features = vectorizer.fit_transform([one.texts[0] for one in TRAIN])
    model = LogisticRegression(C=10, tol=1e-9, max_iter=10_000).fit(features, LABELS)
    scores = model.decision_function(vectorizer.transform([one.texts[0] for one in REST]))
    logits = fit_tfidf(TRAIN, LABELS, NAMES)(REST)
    assert list(model.classes_) == list(NAMES)
    assert logits[:, 1] - logits[:, 0] == pytest.approx(scores, abs=1e-3)
    assert (np.array(NAMES)[logits.argmax(1)] == [one.label for one in REST]).mean() > 0.9


def test_numbers_are_predicted_as_by_ridge_regression() -> None:
    numbers = [float(len(words(one.texts[0]))) for one in TRAIN]
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b"
    )
    features = vectorizer.fit_transform([one.texts[0] for one in TRAIN])
    model = Ridge(alpha=0.1, tol=1e-8).fit(features, numbers)
    expected = model.predict(vectorizer.transform([one.texts[0] for one in REST]))
    assert fit_tfidf(TRAIN, numbers, ())(REST) == pytest.approx(expected, abs=1e-3)


def test_log_count_ratios_are_those_of_the_paper() -> None:
    # p = 1 + (1, 1, 0) and q = 1 + (0, 1, 1): Wang and Manning, 2012, section 2, with alpha 1.
    counts = csr_matrix([[1, 1, 0], [0, 1, 1]])
    ratios = log_count_ratios(counts, np.array([True, False]))
    p, q = np.array([2, 2, 1]) / 5, np.array([1, 2, 2]) / 5
    assert ratios == pytest.approx(np.log(p / q))
    assert ratios[0] == pytest.approx(math.log(2))


def test_naive_bayes_learns_the_word_that_decides() -> None:
    logits = fit_naive_bayes(TRAIN, LABELS, NAMES)(REST)
    assert (np.array(NAMES)[logits.argmax(1)] == [one.label for one in REST]).mean() > 0.9


def test_pair_has_shared_words_apart_from_those_of_one_text() -> None:
    shared, first, second = fields_of(("the red cat", "a red cat sees"))
    assert shared == ["red", "cat", "red cat"]
    assert first == ["the", "the red"]
    assert second == ["a", "sees", "a red", "cat sees"]
    assert len(fields_of(("one", "two", "three"))) == 3


def test_answers_are_the_same_each_time() -> None:
    first, second = (fit_tfidf(TRAIN, LABELS, NAMES)(REST) for _ in range(2))
    assert (first == second).all()


def test_rarest_words_are_left_out_of_a_model_that_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bags, "MOST_WEIGHTS", 5)
    counts = csr_matrix(np.array([[1, 0, 2, 1, 1, 1, 1], [1, 1, 0, 1, 0, 1, 1]]))
    assert bags._most_frequent(counts, NAMES).tolist() == [0, 1, 3, 5, 6]


@pytest.mark.parametrize("fit", [fit_tfidf, fit_naive_bayes])
def test_texts_without_words_are_refused(fit: bags.Fit) -> None:
    empty = [Example(number, ("?!",), NAMES[number]) for number in range(2)]
    with pytest.raises(DataError, match="the training texts contain no word"):
        fit(empty, NAMES, NAMES)


def test_texts_with_no_word_in_common_get_the_answer_of_no_words() -> None:
    logits = fit_tfidf(TRAIN, LABELS, NAMES)([Example(0, ("xyz",)), Example(1, ("",))])
    assert (logits[0] == logits[1]).all()
