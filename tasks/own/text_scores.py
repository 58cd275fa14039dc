"""How answers with labels are scored: by kind of label, the metrics and what else is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.errors import ConfigError, DataError
from finetune.metrics import (
    accuracy,
    auc,
    class_report,
    confusion_matrix,
    indicators,
    macro_f1,
    macro_precision,
    macro_recall,
    mean_absolute_error,
    micro_f1,
    pearson,
    root_mean_squared_error,
    spearman,
    subset_accuracy,
)
from finetune.task.interface import Answer
from tasks.own.label_kinds import CLASSES, MULTI_LABEL, REGRESSION

_Formula = Callable[[npt.ArrayLike, npt.ArrayLike], float]
AnswerMetric = Callable[[Sequence[Answer], Sequence[str]], float]
"""(answers with labels, classes) -> a number, higher is better."""


def _of_rows(formula: _Formula) -> AnswerMetric:
    return lambda answers, names: formula(*_sides(answers))


def _of_sets(formula: _Formula) -> AnswerMetric:
    return lambda answers, names: formula(*_indicator_sides(answers, names))


def _auc(answers: Sequence[Answer], names: Sequence[str]) -> float:
    """Of probabilities; an answer without them has 1 for its class, as a baseline's has."""
    labels = [row["label"] for row in answers]
    true = [[label] if isinstance(label, str) else label for label in labels]
    values = [[_probability(row, name) for name in names] for row in answers]
    return auc(values, indicators(true, names))


def _probability(row: Answer, name: str) -> float:
    if "probabilities" in row:
        return float(row["probabilities"][name])
    predicted = row["prediction"]
    return float(name == predicted if isinstance(predicted, str) else name in predicted)


METRICS_OF: dict[str, dict[str, AnswerMetric]] = {
    CLASSES: {
        "accuracy": _of_rows(accuracy),
        "macro_f1": _of_rows(macro_f1),
        "macro_precision": _of_rows(macro_precision),
        "macro_recall": _of_rows(macro_recall),
        "auc": _auc,
    },
    MULTI_LABEL: {
        "micro_f1": _of_sets(micro_f1),
        "macro_f1": _of_sets(macro_f1),
        "macro_precision": _of_sets(macro_precision),
        "macro_recall": _of_sets(macro_recall),
        "subset_accuracy": _of_sets(subset_accuracy),
        "auc": _auc,
    },
    REGRESSION: {
        "pearson": _of_rows(pearson),
        "spearman": _of_rows(spearman),
        "mean_absolute_error": _of_rows(mean_absolute_error),
        "root_mean_squared_error": _of_rows(root_mean_squared_error),
    },
}
"""Kind of label -> its metrics by name; the first one chooses the best checkpoint."""


def check_labelled(answers: Sequence[Answer], name: str) -> None:
    """Refuse to score answers of which one has no label.

    Args:
        answers: Rows of a predictions file.
        name: Of the task.

    Raises:
        DataError: There are none, or one has no label.
    """
    if not answers or any("label" not in answer for answer in answers):
        raise DataError(
            f"{name}: expected answers with labels, got some without; score a split whose file has "
            "a label column"
        )


def scores_of(
    kind: str, answers: Sequence[Answer], names: Sequence[str], positive: str | None = None
) -> dict[str, float]:
    """The metrics of labelled answers.

    Args:
        kind: Of the labels.
        answers: Rows with a label.
        names: The classes in the order of the logits.
        positive: A class whose precision, recall and F1 are metrics as well.

    Raises:
        ConfigError: There is no such class.
    """
    scores = {name: metric(answers, names) for name, metric in METRICS_OF[kind].items()}
    if positive is None:
        return scores
    if positive not in names:
        raise ConfigError(
            f"positive_class: expected one of the classes {', '.join(names[:10]) or 'none'}, got "
            f"'{positive}'"
        )
    of_class = report_of(kind, answers, names)["per_class"][positive]
    return scores | {name: of_class[name] for name in ("precision", "recall", "f1")}


def report_of(kind: str, answers: Sequence[Answer], names: Sequence[str]) -> dict[str, Any]:
    """What is reported besides the metrics.

    Args:
        kind: Of the labels.
        answers: Rows with a label.
        names: The classes in the order of the logits.

    Returns:
        For classes `per_class` (precision, recall, f1, support) and `confusion_matrix`, of which
        `counts` has a row a true class and a column a predicted one, both in the order of
        `classes`; for several classes a row `per_class`; for numbers `mean_squared_error` and
        `mean_absolute_error`, which are lower for better answers.
    """
    if kind == REGRESSION:
        predicted, true = (np.asarray(side, dtype=float) for side in _sides(answers))
        return {
            "mean_squared_error": float(np.mean((predicted - true) ** 2)),
            "mean_absolute_error": float(np.mean(np.abs(predicted - true))),
        }
    if kind == MULTI_LABEL:
        return {"per_class": class_report(*_indicator_sides(answers, names), names)}
    sides = _sides(answers)
    counts = confusion_matrix(*sides, names).tolist()
    return {
        "per_class": class_report(*sides, names),
        "confusion_matrix": {"classes": list(names), "counts": counts},
    }


def _sides(answers: Sequence[Answer]) -> tuple[list[Any], list[Any]]:
    """Predictions and labels."""
    return [row["prediction"] for row in answers], [row["label"] for row in answers]


def _indicator_sides(
    answers: Sequence[Answer], names: Sequence[str]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    predicted, true = _sides(answers)
    return indicators(predicted, names), indicators(true, names)
