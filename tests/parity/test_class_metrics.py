"""Per-class metrics against scikit-learn, to 1e-12, rare and missing classes included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn import metrics as sklearn
from sklearn.utils.class_weight import compute_class_weight

from finetune.metrics import (
    class_report,
    confusion_matrix,
    macro_f1,
    micro_f1,
    subset_accuracy,
)
from tasks.own.label_kinds import balanced_weights

CLOSE = 1e-12
LABELS = ("a", "b", "c", "d")
pairs_of_names = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS)), min_size=1)
pairs_of_indicators = st.integers(1, 12).flatmap(lambda rows: arrays(np.bool_, (2, rows, 4)))


@settings(deadline=None, max_examples=50)  # scikit-learn is slow where cores are shared
@given(pairs_of_names)
def test_classes_are_scored_as_by_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    predicted, true = zip(*pairs, strict=True)
    expected = sklearn.f1_score(true, predicted, average="macro", zero_division=0)
    assert macro_f1(predicted, true) == pytest.approx(expected, abs=CLOSE)
    matrix = sklearn.confusion_matrix(true, predicted, labels=LABELS)
    assert (confusion_matrix(predicted, true, LABELS) == matrix).all()


@settings(deadline=None, max_examples=50)  # scikit-learn is slow where cores are shared
@given(pairs_of_names)
def test_report_is_that_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    predicted, true = zip(*pairs, strict=True)
    expected = sklearn.classification_report(
        true, predicted, labels=LABELS, output_dict=True, zero_division=0
    )
    for label, row in class_report(predicted, true, LABELS).items():
        found = {name.replace("f1-score", "f1"): value for name, value in expected[label].items()}
        assert row == pytest.approx(found, abs=CLOSE)


@settings(deadline=None, max_examples=50)  # scikit-learn is slow where cores are shared
@given(pairs_of_indicators)
def test_several_classes_are_scored_as_by_scikit_learn(pair: np.ndarray) -> None:
    predicted, true = pair
    for average, ours in (("micro", micro_f1), ("macro", macro_f1)):
        expected = sklearn.f1_score(true, predicted, average=average, zero_division=0)
        assert ours(predicted, true) == pytest.approx(expected, abs=CLOSE)
    expected = sklearn.accuracy_score(true, predicted)
    assert subset_accuracy(predicted, true) == pytest.approx(expected, abs=CLOSE)
    reports = sklearn.classification_report(
        true, predicted, target_names=LABELS, output_dict=True, zero_division=0
    )
    for label, row in class_report(predicted, true, LABELS).items():
        assert row["f1"] == pytest.approx(reports[label]["f1-score"], abs=CLOSE)


@settings(deadline=None, max_examples=50)  # scikit-learn is slow where cores are shared
@given(st.lists(st.sampled_from(LABELS), min_size=1))
def test_balanced_weights_are_those_of_scikit_learn(labels: list[str]) -> None:
    names = sorted(set(labels))
    expected = compute_class_weight("balanced", classes=np.array(names), y=np.array(labels))
    assert balanced_weights(labels, names) == pytest.approx(expected.tolist(), abs=CLOSE)
