"""Logistic regression for classes, ridge regression for numbers: features -> a head's outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.errors import DataError
from finetune.task.interface import Label, Outputs

Scorer = Callable[[Any], Outputs]
"""Features (N, F), dense or sparse -> outputs as a head gives them: logits (N, C), or numbers
(N,)."""
CERTAIN = 20.0
"""Logit of a class that all training examples, or none, belong to."""


def fit(features: Any, labels: Sequence[Label], names: Sequence[str], *, inverse: float) -> Scorer:
    """Fit the regression that the labels ask for.

    Args:
        features: (N, F), a matrix of numpy or a sparse one of SciPy.
        labels: N names of classes, tuples of such names, or numbers.
        names: The C classes in the order of the logits; empty for numbers.
        inverse: Inverse of the strength of the L2 penalty: `C` of scikit-learn.

    Returns:
        What turns features of further examples into outputs.

    Raises:
        DataError: There is only one class.
    """
    if not names:
        return _ridge(features, np.array(labels, dtype=float), 1 / inverse)
    if isinstance(labels[0], tuple):
        return _one_vs_rest(features, labels, names, inverse)
    number = {name: index for index, name in enumerate(names)}
    return _logistic(features, np.array([number[str(label)] for label in labels]), names, inverse)


def _ridge(features: Any, targets: npt.NDArray[np.float64], penalty: float) -> Scorer:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=penalty).fit(features, targets)
    return lambda others: np.asarray(model.predict(others))


def _logistic(
    features: Any, targets: npt.NDArray[np.int64], names: Sequence[str], inverse: float
) -> Scorer:
    """One logit a class; that of a class without training examples is minus infinity."""
    present = np.unique(targets)
    if len(present) == 1:
        raise DataError(
            f"expected at least two classes to train on, got '{names[present[0]]}' alone"
        )
    model = _fitted(features, targets, inverse)

    def outputs(others: Any) -> Outputs:
        scores = model.decision_function(others)
        logits = np.full((len(scores), len(names)), -np.inf)  # (N, C)
        # Of two classes scikit-learn gives the score of the second alone.
        logits[:, present] = np.stack([0 * scores, scores], 1) if scores.ndim == 1 else scores
        return logits

    return outputs


def _one_vs_rest(
    features: Any, labels: Sequence[Label], names: Sequence[str], inverse: float
) -> Scorer:
    """A regression for each class, of which several may hold."""
    sets = [set(label) if isinstance(label, tuple) else {label} for label in labels]
    holds = np.array([[name in held for name in names] for held in sets])  # (N, C)
    models = [
        _fitted(features, column, inverse) if 0 < column.sum() < len(column) else None
        for column in holds.T
    ]

    def outputs(others: Any) -> Outputs:
        columns = [
            np.full(others.shape[0], CERTAIN if column.any() else -CERTAIN)
            if model is None
            else model.decision_function(others)
            for model, column in zip(models, holds.T, strict=True)
        ]
        return np.stack(columns, axis=1)  # (N, C)

    return outputs


def _fitted(features: Any, targets: npt.NDArray[Any], inverse: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    # Newton's method comes to the optimum in some ten steps, where scikit-learn's default stops
    # on its way after 100 that take ten times as long. At a tolerance of 1e-6 no logit is 0.01 from
    # where further steps would bring it.
    return LogisticRegression(C=inverse, solver="newton-cg", tol=1e-6).fit(features, targets)
