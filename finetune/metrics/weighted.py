"""Metrics of many resamples at once, from how often each example was drawn.

A resample with replacement is a weight for each example: how often it was drawn. Most metrics are
sums over examples before they are a ratio, so those of thousands of resamples are one product of
matrices, where scoring the rows of each resample would take minutes. What a metric is, `scores` and
`classes` define; here the same numbers come from weights, to 1e-9, which tests hold.

Each function returns the metrics by name, (R, V): some names stand for V variants, such as the F1
of each class. Weights are float (R, N), whole numbers that sum to N in each row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def class_metrics(weights: Floats, predicted: Bools, true: Bools) -> dict[str, Floats]:
    """Metrics of classes, from counts alone.

    Args:
        weights: How often each example was drawn (R, N).
        predicted: Indicators of the predicted classes (N, C).
        true: Indicators of the true classes (N, C).

    Returns:
        `matthews_correlation` and `micro_f1` (R, 1); `precision`, `recall` and `f1` of each class
        (R, C); `macro_…` of these over the classes that were drawn, and over all (R, 2).
    """
    per_example = np.concatenate([predicted & true, predicted, true], axis=1).astype(float)
    hits, said, holds = np.split(weights @ per_example, 3, axis=1)  # each (R, C)
    ratios = {
        "precision": _ratio(hits, said),
        "recall": _ratio(hits, holds),
        "f1": _ratio(2 * hits, said + holds),
    }
    present = np.maximum((said + holds > 0).sum(axis=1), 1)
    macro = {
        f"macro_{name}": np.stack([values.sum(axis=1) / present, values.mean(axis=1)], axis=1)
        for name, values in ratios.items()
    }
    micro = _ratio(2 * hits.sum(axis=1), (said + holds).sum(axis=1))
    matthews = _matthews(hits.sum(axis=1), said, holds, weights.sum(axis=1))
    return {
        "matthews_correlation": matthews[:, None],
        "micro_f1": micro[:, None],
        **ratios,
        **macro,
    }


def _matthews(correct: Floats, said: Floats, holds: Floats, total: Floats) -> Floats:
    """As `matthews_correlation`, whose sums these are."""
    covariance = correct * total - (said * holds).sum(axis=1)
    said_variance, true_variance = (total**2 - (side * side).sum(axis=1) for side in (said, holds))
    product = said_variance * true_variance
    return np.where(product > 0, covariance / np.sqrt(np.where(product > 0, product, 1)), 0.0)


def _ratio(parts: Floats, wholes: Floats) -> Floats:
    return np.asarray(parts / np.maximum(wholes, 1))  # where the whole is 0, the part is 0 too


def area_metrics(weights: Floats, scores: Floats, true: Bools) -> dict[str, Floats]:
    """Area under the ROC curve, the mean over the classes that have examples on both sides.

    Args:
        weights: How often each example was drawn (R, N).
        scores: Score of each class, float (N, C).
        true: Indicators of the true classes (N, C).

    Returns:
        `auc` (R, 1).
    """
    total, count = np.zeros(len(weights)), np.zeros(len(weights))
    for values, holds in zip(scores.T, true.T, strict=True):
        ranks = _ranks(weights, values)[:, holds]
        positive = weights[:, holds].sum(axis=1)
        negative = weights.sum(axis=1) - positive
        defined = (positive > 0) & (negative > 0)
        above = (ranks * weights[:, holds]).sum(axis=1) - positive * (positive + 1) / 2
        total += np.where(defined, above / np.where(defined, positive * negative, 1), 0.0)
        count += defined
    return {"auc": np.where(count > 0, total / np.maximum(count, 1), 0.5)[:, None]}


def number_metrics(weights: Floats, predicted: Floats, true: Floats) -> dict[str, Floats]:
    """Correlations and errors of numbers.

    Args:
        weights: How often each example was drawn (R, N).
        predicted: Numbers (N,).
        true: The right numbers (N,).

    Returns:
        `pearson`, `spearman` and `root_mean_squared_error` (R, 1).
    """
    squares = weights @ ((predicted - true) ** 2) / weights.sum(axis=1)
    ranks = (_ranks(weights, side) for side in (predicted, true))
    centre = (weights.sum(axis=1, keepdims=True) + 1) / 2
    middles = (predicted - predicted.mean(), true - true.mean())
    constant = _constant(weights, predicted) | _constant(weights, true)
    found = {
        "pearson": np.where(constant, 0.0, _correlation(weights, *middles)),
        "spearman": np.where(constant, 0.0, _correlation(weights, *(r - centre for r in ranks))),
        "root_mean_squared_error": np.sqrt(squares),
    }
    return {name: values[:, None] for name, values in found.items()}


def _correlation(weights: Floats, first: Floats, second: Floats) -> Floats:
    """Weighted correlation, (R,); the series are (N,) or (R, N)."""
    total = weights.sum(axis=1)
    means = [(weights * side).sum(axis=1) / total for side in (first, second)]
    moments = [
        (weights * a * b).sum(axis=1) / total - means[i] * means[j]
        for a, b, i, j in ((first, second, 0, 1), (first, first, 0, 0), (second, second, 1, 1))
    ]
    product = np.maximum(moments[1] * moments[2], 0)
    return np.asarray(moments[0] / np.sqrt(np.where(product > 0, product, 1)))


def _constant(weights: Floats, values: Floats) -> Bools:
    """Whether all that was drawn is one value, (R,)."""
    low = np.where(weights > 0, values, np.inf).min(axis=1)
    return np.asarray(low == np.where(weights > 0, values, -np.inf).max(axis=1))


def _ranks(weights: Floats, values: Floats) -> Floats:
    """The rank of each example among all that were drawn, ties at their mean rank, (R, N)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.searchsorted(ordered, values, side="left")  # of the ties of each example (N,)
    ends = np.searchsorted(ordered, values, side="right")
    drawn = np.zeros((len(weights), len(values) + 1))
    np.cumsum(weights[:, order], axis=1, out=drawn[:, 1:])
    return np.asarray((drawn[:, starts] + drawn[:, ends] + 1) / 2)
