"""Accuracy, F1, Matthews, Pearson and Spearman: the formulas, and each as an `evaluate.Metric`.

The formulas need numpy alone. For every metric higher is better, and it is 0, never NaN, where its
definition divides by zero: a classifier that always predicts one class, a regressor that always
predicts one number. `load` wraps them for code that uses the `evaluate` library; nothing is
downloaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import evaluate

Metric = Callable[[npt.ArrayLike, npt.ArrayLike], float]
Compute = Callable[[Any, Any], dict[str, float]]
"""(predictions, references) -> name of a metric and its value."""


def accuracy(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Fraction of predictions that equal their reference.

    Args:
        predictions: Class numbers or names, (N,).
        references: The true classes, (N,).

    Returns:
        A number in [0, 1].
    """
    predicted, true = _pair(predictions, references)
    return float(np.mean(predicted == true))


def f1(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Harmonic mean of precision and recall of class 1 (binary F1).

    Args:
        predictions: Class numbers 0 or 1, int (N,).
        references: The true classes, int (N,).

    Returns:
        A number in [0, 1]; 0 where class 1 is neither predicted nor true.
    """
    predicted, true = (values == 1 for values in _pair(predictions, references))
    positives = int(predicted.sum()) + int(true.sum())
    return 2 * int((predicted & true).sum()) / positives if positives else 0.0


def matthews_correlation(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Correlation of two labellings (Matthews, 1975; several classes: Gorodkin, 2004, equation 8).

    Args:
        predictions: Class numbers, int (N,).
        references: The true classes, int (N,).

    Returns:
        A number in [-1, 1]; 0 where either side has one class only.
    """
    predicted, true = _pair(predictions, references)
    classes = np.union1d(predicted, true)
    predicted_counts = (predicted[:, None] == classes).sum(axis=0).astype(float)  # (C,)
    true_counts = (true[:, None] == classes).sum(axis=0).astype(float)  # (C,)
    total, correct = len(true), float((predicted == true).sum())
    covariance = correct * total - predicted_counts @ true_counts
    predicted_variance = total**2 - predicted_counts @ predicted_counts
    true_variance = total**2 - true_counts @ true_counts
    if predicted_variance == 0 or true_variance == 0:
        return 0.0
    return float(covariance / np.sqrt(predicted_variance * true_variance))


def pearson(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Linear correlation of two series (Pearson's r).

    Args:
        predictions: Numbers, (N,).
        references: Numbers, (N,).

    Returns:
        A number in [-1, 1]; 0 where either side is constant.
    """
    first, second = (values.astype(float) for values in _pair(predictions, references))
    # The values are compared, not the variance: the mean of equal numbers can be off by an ulp.
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def mean_absolute_error(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Mean distance of predictions from their references, in the unit of the labels."""
    predicted, true = (values.astype(float) for values in _pair(predictions, references))
    return float(np.mean(np.abs(predicted - true)))


def root_mean_squared_error(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Square root of the mean squared distance of predictions from their references."""
    predicted, true = (values.astype(float) for values in _pair(predictions, references))
    return float(np.sqrt(np.mean((predicted - true) ** 2)))


def spearman(predictions: npt.ArrayLike, references: npt.ArrayLike) -> float:
    """Correlation of the ranks of two series (Spearman's rho); ties get their mean rank.

    Args:
        predictions: Numbers, (N,).
        references: Numbers, (N,).

    Returns:
        A number in [-1, 1]; 0 where either side is constant.
    """
    from scipy.stats import rankdata

    first, second = _pair(predictions, references)
    return pearson(rankdata(first), rankdata(second))


METRICS: dict[str, Metric] = {
    metric.__name__: metric for metric in (accuracy, f1, matthews_correlation, pearson, spearman)
}
"""Name in results.json -> function."""


def load(*names: str) -> evaluate.Metric:
    """The counterpart of `evaluate.load` that needs no network and writes no file.

    Args:
        names: Keys of `METRICS`; `compute` returns a value for each.

    Returns:
        An `evaluate.Metric`: `compute(predictions=, references=)`, `add`, `add_batch`.
    """
    import datasets

    kind = "float64" if {"pearson", "spearman"} & set(names) else "int64"

    def compute(predictions: Any, references: Any) -> dict[str, float]:
        return {name: METRICS[name](predictions, references) for name in names}

    return evaluate_metric(
        ", ".join(names),
        {side: datasets.Value(kind) for side in ("predictions", "references")},
        compute,
        format="numpy",
    )


def evaluate_metric(
    description: str, sides: dict[str, Any], compute: Compute, *, format: str | None = None
) -> evaluate.Metric:
    """A formula as a metric of the `evaluate` library that needs no network, writes no file.

    Args:
        description: What is computed.
        sides: Features of one prediction and one reference, as `datasets` names them.
        compute: (predictions, references) -> name of a metric and its value.
        format: `numpy` where the formula takes arrays; None for lists.
    """
    import datasets
    import evaluate

    info = evaluate.MetricInfo(
        description=description,
        citation="",
        inputs_description="predictions and references: one of each for every example.",
        features=datasets.Features(sides),
        format=format,
    )
    return _evaluate_class()(info, compute)


@functools.cache
def _evaluate_class() -> Any:
    """Make the class on first use: importing `evaluate` takes seconds and may not be possible."""
    import evaluate

    class LocalMetric(evaluate.Metric):  # type: ignore[misc]
        def __init__(self, info: evaluate.MetricInfo, compute: Compute) -> None:
            self._given, self._formula = info, compute
            super().__init__(keep_in_memory=True)

        def _build_data_dir(self) -> str:
            return ""  # the parent class makes a folder in the user's cache even for memory

        def _info(self) -> evaluate.MetricInfo:
            return self._given

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return self._formula(predictions, references)

    return LocalMetric


def _pair(
    predictions: npt.ArrayLike, references: npt.ArrayLike
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    predicted, true = np.asarray(predictions), np.asarray(references)
    if predicted.ndim != 1 or predicted.shape != true.shape or not predicted.size:
        raise ValueError(
            "expected predictions and references of the same length, at least 1; "
            f"got {predicted.shape} and {true.shape}"
        )
    return predicted, true
