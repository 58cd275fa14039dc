"""Per-class figures: expected values, and what is zero where nothing can be divided."""

from __future__ import annotations

import numpy as np
import pytest

from finetune.metrics import (
    class_report,
    confusion_matrix,
    indicators,
    macro_f1,
    micro_f1,
    subset_accuracy,
)

LABELS = ("a", "b", "c")
PREDICTED = ["a", "a", "b", "a"]
TRUE = ["a", "b", "b", "c"]


def test_report_counts_each_class() -> None:
    report = class_report(PREDICTED, TRUE, LABELS)
    assert report["a"] == pytest.approx({"precision": 1 / 3, "recall": 1, "f1": 0.5, "support": 1})
    assert report["b"] == pytest.approx({"precision": 1, "recall": 0.5, "f1": 2 / 3, "support": 2})


def test_class_that_is_never_predicted_has_zeros_and_no_warning() -> None:
    report = class_report(PREDICTED, TRUE, LABELS)
    assert report["c"] == {"precision": 0, "recall": 0, "f1": 0, "support": 1}


def test_macro_f1_leaves_out_a_class_that_is_nowhere() -> None:
    assert macro_f1(["a", "b"], ["a", "b"]) == 1.0
    assert macro_f1(PREDICTED, TRUE) == pytest.approx((0.5 + 2 / 3 + 0) / 3)


def test_confusion_matrix_has_a_row_a_true_class() -> None:
    matrix = confusion_matrix(PREDICTED, TRUE, LABELS)
    assert matrix.tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 0]]


def test_indicators_of_sets_and_of_empty_sets() -> None:
    held = indicators([("b", "a"), (), ["c"]], LABELS)
    assert held.tolist() == [[True, True, False], [False] * 3, [False, False, True]]


def test_several_classes_are_scored_as_decisions_and_as_wholes() -> None:
    predicted = indicators([("a",), ("a", "b"), ()], LABELS)
    true = indicators([("a",), ("b",), ("c",)], LABELS)
    assert micro_f1(predicted, true) == pytest.approx(2 * 2 / (3 + 3))
    assert subset_accuracy(predicted, true) == pytest.approx(1 / 3)


def test_nothing_predicted_where_nothing_holds_scores_zero_f1_not_nan() -> None:
    nothing = np.zeros((2, 3), dtype=bool)
    assert micro_f1(nothing, nothing) == macro_f1(nothing, nothing) == 0.0
    assert subset_accuracy(nothing, nothing) == 1.0


def test_sides_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="same shape and of at least 1 example"):
        macro_f1(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="at least 1 example"):
        macro_f1([], [])
