"""Logistic regression for classes, ridge regression for numbers: features -> a head's outputs.

The strength of the L2 penalty is chosen on the training examples alone, by cross-validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.errors import DataError
from finetune.task.interface import Label, Outputs

Scorer = Callable[[Any], Outputs]
"""Features (N, F), dense or sparse -> outputs as a head gives them: logits (N, C), or numbers
(N,)."""
Rows = npt.NDArray[np.int64]
"""Numbers of training examples."""
FitRows = Callable[[Rows, float], Callable[[Rows], Outputs]]
"""Fit to some training examples with an inverse penalty -> the outputs for others."""
CERTAIN = 20.0
"""Logit of a class that all training examples, or none, belong to."""
ROUGH = 1e-4
"""Tolerance of a model that is only to be compared with others."""
FOLDS = 5
"""Parts of the training examples, of which one is held out at a time."""
HELD_OUT = 2_000
"""Where one part, or a few, have so many examples, the penalty is chosen on these alone."""
MOST_EXAMPLES = 20_000
"""Training examples that a penalty is chosen on, at most: it takes seconds."""


def fit(
    features: Any,
    labels: Sequence[Label],
    names: Sequence[str],
    *,
    inverse: float,
    tolerance: float = 1e-6,
) -> Scorer:
    """Fit the regression that the labels ask for.

    Args:
        features: (N, F), a matrix of numpy or a sparse one of SciPy.
        labels: N names of classes, tuples of such names, or numbers.
        names: The C classes in the order of the logits; empty for numbers.
        inverse: Inverse of the strength of the L2 penalty: `C` of scikit-learn.
        tolerance: Of logistic regression: the largest gradient at which it ends. At 1e-6 no logit
            is 0.01 from where further steps would bring it; `ROUGH` is enough to choose a penalty.

    Returns:
        What turns features of further examples into outputs.

    Raises:
        DataError: There is only one class.
    """
    if not names:
        return _ridge(features, np.array(labels, dtype=float), 1 / inverse)
    if isinstance(labels[0], tuple):
        return _one_vs_rest(features, labels, names, inverse, tolerance)
    number = {name: index for index, name in enumerate(names)}
    targets = np.array([number[str(label)] for label in labels])
    return _logistic(features, targets, names, inverse, tolerance)


def choose_inverse(
    inverses: Sequence[float],
    labels: Sequence[Label],
    fit_rows: FitRows,
    goodness: Callable[[Rows, Outputs], float],
) -> float:
    """Choose the inverse penalty by cross-validation on the training examples.

    Args:
        inverses: What to choose from, the smallest first.
        labels: Of the N training examples.
        fit_rows: Fits a model to some of them.
        goodness: How good outputs for some of them are, more is better.

    Returns:
        The best on average over the folds, the smallest of equals; the middle one where the
        examples are too few to hold any out.
    """
    parts = list(folds(labels))
    if not parts:
        return inverses[len(inverses) // 2]
    means = [
        sum(goodness(held, fit_rows(rest, inverse)(held)) for rest, held in parts)
        for inverse in inverses
    ]
    return inverses[int(np.argmax(means))]


def folds(labels: Sequence[Label]) -> Iterator[tuple[Rows, Rows]]:
    """Divide training examples into those to fit to and those held out, some `FOLDS` times.

    Every part has each class as often as the others, and numbers of the whole range; it is the same
    each time. Parts that leave one class alone to fit to are left out.

    Args:
        labels: Of the N training examples.
    """
    order = np.array(sorted(range(len(labels)), key=lambda row: label_order(labels[row])))
    if len(order) > MOST_EXAMPLES:
        order = order[np.linspace(0, len(order) - 1, MOST_EXAMPLES).round().astype(int)]
    part = np.arange(len(order)) % FOLDS
    wanted = -(-HELD_OUT * FOLDS // len(order)) if len(order) >= FOLDS else 0
    for number in range(min(FOLDS, wanted)):
        rest, held = np.sort(order[part != number]), np.sort(order[part == number])
        if len({labels[row] for row in rest}) > 1:
            yield rest, held


def label_order(label: Label | None) -> tuple[float, str]:
    """A key that sorts labels: classes by name, numbers by size."""
    return (label, "") if isinstance(label, int | float) else (0.0, str(label))


def _ridge(features: Any, targets: npt.NDArray[np.float64], penalty: float) -> Scorer:
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=penalty).fit(features, targets)
    return lambda others: np.asarray(model.predict(others))


def _logistic(
    features: Any,
    targets: npt.NDArray[np.int64],
    names: Sequence[str],
    inverse: float,
    tolerance: float,
) -> Scorer:
    """One logit a class; that of a class without training examples is minus infinity."""
    present = np.unique(targets)
    if len(present) == 1:
        raise DataError(
            f"expected at least two classes to train on, got '{names[present[0]]}' alone"
        )
    model = _fitted(features, targets, inverse, tolerance)

    def outputs(others: Any) -> Outputs:
        scores = model.decision_function(others)
        logits = np.full((len(scores), len(names)), -np.inf)  # (N, C)
        # Of two classes scikit-learn gives the score of the second alone.
        logits[:, present] = np.stack([0 * scores, scores], 1) if scores.ndim == 1 else scores
        return logits

    return outputs


def _one_vs_rest(
    features: Any,
    labels: Sequence[Label],
    names: Sequence[str],
    inverse: float,
    tolerance: float,
) -> Scorer:
    """A regression for each class, of which several may hold."""
    sets = [set(label) if isinstance(label, tuple) else {label} for label in labels]
    holds = np.array([[name in held for name in names] for held in sets])  # (N, C)
    models = [
        _fitted(features, column, inverse, tolerance) if 0 < column.sum() < len(column) else None
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


def _fitted(features: Any, targets: npt.NDArray[Any], inverse: float, tolerance: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    # Newton's method comes to the optimum in some ten steps, where scikit-learn's default stops
    # on its way after 100 that take ten times as long.
    model = LogisticRegression(C=inverse, solver="newton-cg", tol=tolerance)
    return model.fit(features, targets)
