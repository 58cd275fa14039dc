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
    auc,
    class_report,
    confusion_matrix,
    macro_f1,
    macro_precision,
    macro_recall,
    mean_absolute_error,
    micro_f1,
    root_mean_squared_error,
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
    for ours, theirs in (
        (macro_precision, sklearn.precision_score),
        (macro_recall, sklearn.recall_score),
    ):
        expected = theirs(true, predicted, average="macro", zero_division=0)
        assert ours(predicted, true) == pytest.approx(expected, abs=CLOSE)
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


@settings(deadline=None, max_examples=50)
@given(st.data(), st.integers(4, 20))
def test_area_under_the_curve_is_that_of_scikit_learn(data: st.DataObject, rows: int) -> None:
    # Few values, so that there are ties; each class has an example and another example.
    scores = data.draw(arrays(np.float64, (rows, 3), elements=st.sampled_from([0.1, 0.2, 0.7])))
    true = data.draw(arrays(np.bool_, (rows, 3)))
    true[0], true[1] = True, False
    expected = sklearn.roc_auc_score(true, scores, average="macro")
    assert auc(scores, true) == pytest.approx(expected, abs=CLOSE)


def test_area_of_two_classes_is_that_of_either() -> None:
    scores = np.array([0.1, 0.4, 0.35, 0.8])
    true = np.array([False, False, True, True])
    both = auc(np.stack([1 - scores, scores], 1), np.stack([~true, true], 1))
    assert both == pytest.approx(sklearn.roc_auc_score(true, scores)) == 0.75


def test_classes_that_all_or_none_are_of_have_no_area() -> None:
    scores = np.array([[0.1, 0.9], [0.2, 0.3]])
    assert auc(scores, np.array([[True, False], [True, True]])) == 1 - 1.0
    assert auc(scores, np.array([[True, False], [True, False]])) == 0.5


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=1))
def test_errors_are_those_of_scikit_learn(pairs: list[tuple[float, float]]) -> None:
    predicted, true = zip(*pairs, strict=True)
    expected = sklearn.mean_absolute_error(true, predicted)
    assert mean_absolute_error(predicted, true) == pytest.approx(expected, abs=1e-9)
    expected = sklearn.root_mean_squared_error(true, predicted)
    assert root_mean_squared_error(predicted, true) == pytest.approx(expected, abs=1e-9)
