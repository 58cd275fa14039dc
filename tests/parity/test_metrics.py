"""Our metrics against scikit-learn and SciPy, to 1e-12, ties and rare classes included."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn

from finetune.metrics import accuracy, f1, matthews_correlation, pearson, spearman

CLOSE = 1e-12
pairs_of_classes = st.integers(2, 4).flatmap(
    lambda classes: st.lists(
        st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1
    )
)
# Halves: many ties; and no differences so small that the definition itself loses digits.
pairs_of_halves = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=2).map(
    lambda pairs: [(first / 2, second / 2) for first, second in pairs]
)


@given(pairs_of_classes)
def test_accuracy_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predictions, references = zip(*pairs, strict=True)
    expected = sklearn.accuracy_score(references, predictions)
    assert accuracy(predictions, references) == pytest.approx(expected, abs=CLOSE)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1))
def test_f1_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predictions, references = zip(*pairs, strict=True)
    expected = sklearn.f1_score(references, predictions, zero_division=0)
    assert f1(predictions, references) == pytest.approx(expected, abs=CLOSE)


@given(pairs_of_classes)
def test_matthews_correlation_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predictions, references = zip(*pairs, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where all labels are the same
        expected = sklearn.matthews_corrcoef(references, predictions)
    assert matthews_correlation(predictions, references) == pytest.approx(expected, abs=CLOSE)


@given(pairs_of_halves)
def test_correlations_are_those_of_scipy_also_with_ties(pairs: list[tuple[float, float]]) -> None:
    predictions, references = zip(*pairs, strict=True)
    assume(len(set(predictions)) > 1 and len(set(references)) > 1)
    linear = stats.pearsonr(predictions, references).statistic
    ranked = stats.spearmanr(predictions, references).statistic
    assert pearson(predictions, references) == pytest.approx(linear, abs=CLOSE)
    assert spearman(predictions, references) == pytest.approx(ranked, abs=CLOSE)


@pytest.mark.parametrize("size", [10, 1500])
def test_correlations_of_noisy_scores_are_those_of_scipy(size: int) -> None:
    rng = np.random.default_rng(size)
    references = rng.uniform(0, 5, size).round(1)
    predictions = np.clip(references + rng.normal(0, 1, size), 0, 5)
    linear = stats.pearsonr(predictions, references).statistic
    ranked = stats.spearmanr(predictions, references).statistic
    assert pearson(predictions, references) == pytest.approx(linear, abs=CLOSE)
    assert spearman(predictions, references) == pytest.approx(ranked, abs=CLOSE)
