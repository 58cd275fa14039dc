"""Bag of words against scikit-learn's own pipeline, and naive Bayes against hand-made counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from finetune.elementary import bags
from finetune.elementary.bags import (
    Training,
    count_grams,
    fields_of,
    fit_naive_bayes,
    fit_tfidf,
    log_count_ratios,
    remembered,
    words,
)
from finetune.elementary.linear import folds
from finetune.errors import DataError
from finetune.task.interface import Example, Outputs
from tests.made.texts import has_the, sentences


def examples(seed: int, count: int) -> list[Example]:
    return [
        Example(number, (text,), ("without", "with")[has_the(text)])
        for number, text in enumerate(sentences(seed, count))
    ]


TRAIN, REST = examples(1, 200), examples(2, 40)
NAMES = ("with", "without")
TRAINING = Training(TRAIN, NAMES)


def numbered(examples: list[Example]) -> list[Example]:
    """The same texts, each labelled with the number of its words."""
    return [replace(one, label=float(len(words(one.texts[0])))) for one in examples]


def pipeline(*, ridge: bool, inverses: tuple[float, ...]) -> GridSearchCV:
    """The baseline as scikit-learn would put it together, with its own grid search."""
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b"
    )
    model = Ridge(tol=1e-8) if ridge else LogisticRegression(tol=1e-9, max_iter=10_000)
    grid = [1 / one for one in inverses] if ridge else list(inverses)
    labels = [one.label for one in (numbered(TRAIN) if ridge else TRAIN)]
    return GridSearchCV(
        make_pipeline(vectorizer, model),
        {"ridge__alpha" if ridge else "logisticregression__C": grid},
        scoring="neg_mean_squared_error" if ridge else "accuracy",
        cv=list(folds(labels)),
    ).fit([one.texts[0] for one in TRAIN], labels)


def test_words_are_of_letters_and_digits_of_every_script() -> None:
    assert words("It's 3 o'clock, Ñandú_x!") == "it s 3 o clock ñandú x".split()
    assert words("東京に") == ["東", "京", "に"]
    assert words("?! —") == []


def test_tfidf_is_the_pipeline_of_scikit_learn() -> None:
    model = pipeline(ridge=False, inverses=bags.TFIDF_INVERSES)
    scores = model.decision_function([one.texts[0] for one in REST])
    logits = fit_tfidf(TRAINING)(REST)
    assert list(model.classes_) == list(NAMES)
    assert logits[:, 1] - logits[:, 0] == pytest.approx(scores, abs=1e-3)
    assert (np.array(NAMES)[logits.argmax(1)] == [one.label for one in REST]).mean() > 0.9


def test_numbers_are_predicted_as_by_ridge_regression() -> None:
    expected = pipeline(ridge=True, inverses=bags.RIDGE_INVERSES).predict(
        [one.texts[0] for one in REST]
    )
    assert fit_tfidf(Training(numbered(TRAIN)))(REST) == pytest.approx(expected, abs=1e-2)


def test_log_count_ratios_are_those_of_the_paper() -> None:
    # p = 1 + (1, 1, 0) and q = 1 + (0, 1, 1): Wang and Manning, 2012, section 2, with alpha 1.
    counts = csr_matrix([[1, 1, 0], [0, 1, 1]])
    ratios = log_count_ratios(counts, np.array([True, False]))
    p, q = np.array([2, 2, 1]) / 5, np.array([1, 2, 2]) / 5
    assert ratios == pytest.approx(np.log(p / q))
    assert ratios[0] == pytest.approx(math.log(2))


def test_naive_bayes_learns_the_word_that_decides() -> None:
    answer = fit_naive_bayes(TRAINING)
    logits = answer(REST)
    assert (np.array(NAMES)[logits.argmax(1)] == [one.label for one in REST]).mean() > 0.9
    twice, thrice = answer([Example(0, ("the the",)), Example(1, ("the the the",))])
    assert (twice == thrice).all()  # a word is there or not


def test_penalty_of_naive_bayes_is_chosen_without_the_labels_held_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[tuple[int, int]] = []

    def ratios(counts: csr_matrix, is_second: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        counted.append((counts.shape[0], len(is_second)))
        return log_count_ratios(counts, is_second)

    monkeypatch.setattr(bags, "log_count_ratios", ratios)
    fit_naive_bayes(TRAINING)
    assert counted == [(160, 160)] * 5 * len(bags.RATIO_INVERSES) + [(200, 200)]


def test_pair_has_shared_words_apart_from_those_of_one_text() -> None:
    shared, first, second = fields_of(("the red cat", "a red cat sees"))
    assert shared == ["red", "cat", "red cat"]
    assert first == ["the", "the red"]
    assert second == ["a", "sees", "a red", "cat sees"]
    assert len(fields_of(("one", "two", "three"))) == 3


def test_words_of_the_same_list_are_counted_once() -> None:
    counted: list[int] = []

    def count(examples: Sequence[Example]) -> object:
        counted.append(len(examples))
        return count_grams(examples)

    training = Training(TRAIN, NAMES, remembered(count))
    for fit in (fit_tfidf, fit_naive_bayes):
        fit(training)(REST)
    assert counted == [len(TRAIN), len(REST)]


def test_small_set_of_numbers_gets_a_weak_penalty() -> None:
    # Half stars by the word: what a strong penalty would pull towards the mean.
    stars = {word: 0.5 + n / 2 for n, word in enumerate("awful bad poor fair good great".split())}
    train = [
        Example(n, (f"this is a {word} film number {n}",), value)
        for n, (word, value) in enumerate(list(stars.items()) * 6)
    ]
    predicted = fit_tfidf(Training(train))([Example(0, (f"a {word} film",)) for word in stars])
    assert float(np.sqrt(np.mean((predicted - list(stars.values())) ** 2))) < 0.4


def test_penalty_is_chosen_by_the_score_that_is_given() -> None:
    asked: list[int] = []

    def score(outputs: Outputs, examples: Sequence[Example]) -> float:
        asked.append(len(examples))
        return -abs(outputs).max()  # the strongest penalty has the smallest logits

    weak, strong = Training(TRAIN, NAMES), Training(TRAIN, NAMES, score=score)
    assert abs(fit_tfidf(strong)(REST)).max() < abs(fit_tfidf(weak)(REST)).max()
    assert asked == [40] * 5 * len(bags.TFIDF_INVERSES)


def test_answers_are_the_same_each_time() -> None:
    first, second = (fit_tfidf(Training(TRAIN, NAMES))(REST) for _ in range(2))
    assert (first == second).all()


def test_rarest_words_are_left_out_of_a_model_that_would_be_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bags, "MOST_WEIGHTS", 5)
    counts = csr_matrix(np.array([[1, 0, 2, 1, 1, 1, 1], [1, 1, 0, 1, 0, 1, 1]]))
    assert bags._most_frequent(counts, NAMES).tolist() == [0, 1, 3, 5, 6]


@pytest.mark.parametrize("fit", [fit_tfidf, fit_naive_bayes])
def test_texts_without_words_are_refused(fit: Callable[[Training], object]) -> None:
    empty = [Example(number, ("?!",), NAMES[number]) for number in range(2)]
    with pytest.raises(DataError, match="the training texts contain no word"):
        fit(Training(empty, NAMES))


def test_texts_with_no_word_in_common_get_the_answer_of_no_words() -> None:
    logits = fit_tfidf(TRAINING)([Example(0, ("xyz",)), Example(1, ("",))])
    assert (logits[0] == logits[1]).all()
