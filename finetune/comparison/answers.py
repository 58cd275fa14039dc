"""Answers of a predictions file: their form, whether and how far they are wrong, their confusions.

The form of a row follows from its fields; no task is known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from finetune.comparison.groups import Answer
from finetune.metrics import classes
from finetune.metrics.classes import ClassCounts, confusion_matrix
from finetune.metrics.spans import token_f1

MOST_CLASSES = 20
"""Classes in a confusion matrix: a larger one is too wide to read."""
Form = Literal["classes", "sets of classes", "number", "span"]


def form_of(row: Mapping[str, Any]) -> Form | None:
    """The form of an answer; None for one of no known form."""
    prediction = row.get("prediction")
    if "nbest" in row or "answers" in row:
        return "span"
    if isinstance(prediction, list):
        return "sets of classes"
    if isinstance(prediction, str):
        return "classes"
    return "number" if isinstance(prediction, int | float) else None


def wrongness(row: Answer) -> float:
    """How wrong one answer is.

    One class: 1 less the probability of the right one. A set of classes: the mean distance of the
    probabilities from 0 or 1. A number: its distance from the right one. A span: 1 less the token
    F1 with the nearest right answer, times the probability of the predicted text, so that a
    confident error counts more than a hesitant one.
    """
    form = form_of(row)
    if form == "classes":
        probabilities = row.get("probabilities") or {}
        return 1 - float(probabilities.get(row["label"], row["prediction"] == row["label"]))
    if form == "sets of classes":
        gold = set(row["label"])
        distances = [abs((name in gold) - p) for name, p in row["probabilities"].items()]
        return sum(distances) / len(distances) if distances else 0.0
    if form == "number":
        return abs(float(row["prediction"]) - float(row["label"]))
    return (1 - span_f1(row)) * _confidence(row)


def is_right(row: Answer) -> bool:
    """Whether an answer is right: a span with a token F1 of 1; a number is never exactly right."""
    if form_of(row) == "span":
        return span_f1(row) == 1
    if form_of(row) == "sets of classes":
        return set(row["prediction"]) == set(row["label"])
    return form_of(row) == "classes" and bool(row["prediction"] == row["label"])


def span_f1(row: Answer) -> float:
    """Token F1 of a span with the nearest right answer; 1 if there is none and none is given."""
    golds = row.get("answers") or []
    if not golds:
        return float(not row["prediction"])
    return max(token_f1(row["prediction"], gold["text"], "1.1") for gold in golds)


def confidences(seeds: Sequence[Sequence[Answer]]) -> tuple[list[float], list[bool]] | None:
    """How sure each answer of all seeds is, and whether it is right; None without probabilities.

    One class or a span: its probability. A set of classes: each class is an answer of its own,
    right where the class applies.
    """
    rows = [row for answers in seeds for row in answers if "label" in row or "answers" in row]
    forms = {form_of(row) for row in rows}
    if forms == {"span"} and all(row.get("nbest") for row in rows):
        return [_confidence(row) for row in rows], [is_right(row) for row in rows]
    if forms not in ({"classes"}, {"sets of classes"}):
        return None
    if not all(row.get("probabilities") for row in rows):
        return None
    if forms == {"classes"}:
        sure = [float(row["probabilities"][row["prediction"]]) for row in rows]
        return sure, [is_right(row) for row in rows]
    pairs = [
        (float(value), name in row["label"])
        for row in rows
        for name, value in row["probabilities"].items()
    ]
    return [value for value, _ in pairs], [applies for _, applies in pairs]


def _confidence(row: Answer) -> float:
    candidates = row.get("nbest") or ()
    probabilities = (c["probability"] for c in candidates if c["text"] == row["prediction"])
    return float(next(probabilities, 1.0))  # a no-answer prediction stands in no n-best list


class Confusion(NamedTuple):
    """Counts of right and predicted classes over all seeds."""

    classes: list[str]
    """In the order of the head's outputs."""
    counts: list[list[int]]
    """One row for each right class, one column for each predicted class."""
    seeds: int
    """How many."""


def confusion(seeds: Sequence[Sequence[Answer]]) -> Confusion | None:
    """Count right and predicted classes; None where answers are not classes, or too many."""
    rows = [row for answers in seeds for row in answers if "label" in row]
    if not rows or any(form_of(row) != "classes" for row in rows):
        return None
    # Probabilities name the classes in the order of the head's outputs, also those without a row.
    every = dict.fromkeys([*(rows[0].get("probabilities") or ()), *(row["label"] for row in rows)])
    names = [name for name in every if isinstance(name, str)]
    if not 2 <= len(names) <= MOST_CLASSES:
        return None
    answered, right = ([row[key] for row in rows] for key in ("prediction", "label"))
    return Confusion(names, confusion_matrix(answered, right, names).tolist(), len(seeds))


class ClassScores(NamedTuple):
    """Scores of one class, fractions; 0 where the class was never predicted or is never right."""

    precision: float
    recall: float
    f1: float
    support: int
    """Examples of the class, over all seeds."""


def class_scores(matrix: Confusion) -> list[ClassScores]:
    """Scores of each class, in their order."""
    counts = np.array(matrix.counts)
    of_class = ClassCounts(counts.diagonal(), counts.sum(axis=0), counts.sum(axis=1))
    return [ClassScores(*row) for row in classes.class_scores(of_class)]
