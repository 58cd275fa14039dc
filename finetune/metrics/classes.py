"""Precision, recall and F1 of each class, their averages, and the confusion matrix.

Each example has one class, given by name or number (N,), or several, given as indicators: bool
(N, C), True where the class applies. A ratio is 0, never NaN, where its definition divides by zero.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_Bools = npt.NDArray[np.bool_]
_Counts = npt.NDArray[np.int64]


class ClassCounts(NamedTuple):
    """Numbers of examples of each class, each (C,)."""

    hits: _Counts
    """Predicted and true."""
    predicted: _Counts
    true: _Counts


def indicators(sets: Sequence[Collection[str]], labels: Sequence[str]) -> _Bools:
    """Turn sets of class names into indicators, as `MultiLabelBinarizer` of scikit-learn does.

    Args:
        sets: The classes of each of N examples.
        labels: All C classes.

    Returns:
        bool (N, C), True where the class applies.
    """
    rows = [[label in names for label in labels] for names in sets]
    return np.array(rows, dtype=np.bool_).reshape(len(sets), len(labels))  # also where N is 0


def macro_f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Unweighted mean of the F1 of each class.

    Args:
        predictions: Classes (N,), or indicators bool (N, C).
        references: The true classes, in the same form.

    Returns:
        A number in [0, 1]. Classes given by name or number are included if they are predicted or
        true at least once, as in scikit-learn; of indicators all C are.
    """
    return float(np.mean(_f1(_present_counts(predictions, references))))


def macro_precision(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Unweighted mean of the precision of each class; arguments and classes as for `macro_f1`."""
    counts = _present_counts(predictions, references)
    return float(np.mean(_ratio(counts.hits, counts.predicted)))


def macro_recall(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Unweighted mean of the recall of each class; arguments and classes as for `macro_f1`."""
    counts = _present_counts(predictions, references)
    return float(np.mean(_ratio(counts.hits, counts.true)))


def auc(scores: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Area under the ROC curve, the mean over the classes.

    It is how often an example of a class has a higher score for it than an example of another; a
    tie counts half. Of two classes whose scores sum to 1, both have the same area.

    Args:
        scores: Score of each class, such as its probability, float (N, C).
        references: Indicators of the true classes, bool (N, C).

    Returns:
        A number in [0, 1]; 0.5 for guessing. Classes that all examples are of, or none, are left
        out; 0.5 where no class is left.
    """
    from scipy.stats import rankdata

    values, true = _pair(scores, references)
    true = true.astype(np.bool_)
    positive = true.sum(axis=0)  # (C,)
    negative = len(true) - positive
    defined = (positive > 0) & (negative > 0)
    if not defined.any():
        return 0.5
    ranks = rankdata(values, axis=0)  # (N, C)
    above = (ranks * true).sum(axis=0) - positive * (positive + 1) / 2  # pairs in the right order
    return float(np.mean(above[defined] / (positive * negative)[defined]))


def micro_f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """F1 of all decisions together: each class of each example is one decision.

    Args:
        predictions: Indicators, bool (N, C).
        references: The true indicators, bool (N, C).

    Returns:
        A number in [0, 1].
    """
    counts = _counts(*_pair(predictions, references))
    total = int(counts.predicted.sum() + counts.true.sum())
    return 2 * int(counts.hits.sum()) / total if total else 0.0


def subset_accuracy(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Fraction of examples whose set of classes is exactly right.

    Args:
        predictions: Indicators, bool (N, C).
        references: The true indicators, bool (N, C).

    Returns:
        A number in [0, 1].
    """
    predicted, true = _pair(predictions, references)
    return float(np.mean((predicted == true).all(axis=1)))


def class_report(
    predictions: npt.ArrayLike, references: npt.ArrayLike, labels: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of each class, and its number of examples.

    Args:
        predictions: Classes by name (N,), or indicators bool (N, C).
        references: The true classes, in the same form.
        labels: All C classes, in the order of the indicators.

    Returns:
        Class -> `precision`, `recall`, `f1` in [0, 1] and `support`, its number of examples.
    """
    predicted, true = _pair(predictions, references)
    if predicted.ndim == 1:
        names = np.asarray(labels)
        predicted, true = predicted[:, None] == names, true[:, None] == names  # (N, C)
    keys = ("precision", "recall", "f1", "support")
    rows = class_scores(_counts(predicted, true))
    return {
        label: dict(zip(keys, row, strict=True)) for label, row in zip(labels, rows, strict=True)
    }


def class_scores(counts: ClassCounts) -> list[tuple[float, float, float, int]]:
    """Precision, recall, F1 and the number of true examples, a row a class."""
    columns = (
        _ratio(counts.hits, counts.predicted).tolist(),
        _ratio(counts.hits, counts.true).tolist(),
        _f1(counts).tolist(),
        counts.true.tolist(),
    )
    return list(zip(*columns, strict=True))


def confusion_matrix(
    predictions: npt.ArrayLike, references: npt.ArrayLike, labels: Sequence[str]
) -> _Counts:
    """Count the examples of each true class by the class that was predicted.

    Args:
        predictions: Classes by name, (N,).
        references: The true classes, (N,).
        labels: All C classes.

    Returns:
        int64 (C, C): a row for each true class, a column for each predicted class.
    """
    predicted, true = _pair(predictions, references)
    index_of = {label: index for index, label in enumerate(labels)}
    matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
    rows = [index_of[name] for name in true.tolist()]
    columns = [index_of[name] for name in predicted.tolist()]
    np.add.at(
        matrix, (rows, columns), 1
    )  # `matrix[rows, columns] += 1` counts a repeated cell once
    return matrix


def _present_counts(predictions: npt.ArrayLike, references: npt.ArrayLike) -> ClassCounts:
    """Counts of the classes that are predicted or true at least once; of indicators, of all C."""
    predicted, true = _pair(predictions, references)
    if predicted.ndim == 1:
        present = np.union1d(predicted, true)
        predicted, true = predicted[:, None] == present, true[:, None] == present
    return _counts(predicted, true)


def _counts(predicted: _Bools, true: _Bools) -> ClassCounts:
    return ClassCounts(
        (predicted & true).sum(axis=0), predicted.sum(axis=0), true.sum(axis=0)
    )  # each (C,)


def _f1(counts: ClassCounts) -> npt.NDArray[np.float64]:
    return _ratio(2 * counts.hits, counts.predicted + counts.true)


def _ratio(parts: _Counts, wholes: _Counts) -> npt.NDArray[np.float64]:
    return np.asarray(parts / np.maximum(wholes, 1))  # where the whole is 0, the part is 0 too


def _pair(
    predictions: npt.ArrayLike, references: npt.ArrayLike
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    predicted, true = np.asarray(predictions), np.asarray(references)
    if predicted.shape != true.shape or not predicted.size:
        raise ValueError(
            "expected predictions and references of the same shape and of at least 1 example; "
            f"got {predicted.shape} and {true.shape}"
        )
    return predicted, true
