"""Answers of a predictions file: of which form, right or wrong and how wrong, and their confusions.

Which form a row has, its fields say; no task is known here.
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
"""More make no table that one can read."""
Form = Literal["classes", "classes that hold", "number", "span"]


def form_of(row: Mapping[str, Any]) -> Form | None:
    """The form of an answer; None for one of no known form."""
    prediction = row.get("prediction")
    if "nbest" in row or "answers" in row:
        return "span"
    if isinstance(prediction, list):
        return "classes that hold"
    if isinstance(prediction, str):
        return "classes"
    return "number" if isinstance(prediction, int | float) else None


def wrongness(row: Answer) -> float:
    """How wrong one answer is.

    Classes: 1 less the probability of the right one. Classes of which several hold: the mean
    distance of their probabilities from 0 or 1. A number: its distance from the right one. A span:
    1 less the token F1 with the nearest right answer, times the probability of what was said.
    """
    form = form_of(row)
    if form == "classes":
        shares = row.get("probabilities") or {}
        return 1 - float(shares.get(row["label"], row["prediction"] == row["label"]))
    if form == "classes that hold":
        held = set(row["label"])
        distances = [abs((name in held) - share) for name, share in row["probabilities"].items()]
        return sum(distances) / len(distances) if distances else 0.0
    if form == "number":
        return abs(float(row["prediction"]) - float(row["label"]))
    return (1 - span_f1(row)) * _confidence(row)


def is_right(row: Answer) -> bool:
    """Whether an answer is the right one; a span with token F1 of 1, a number never."""
    if form_of(row) == "span":
        return span_f1(row) == 1
    if form_of(row) == "classes that hold":
        return set(row["prediction"]) == set(row["label"])
    return form_of(row) == "classes" and bool(row["prediction"] == row["label"])


def span_f1(row: Answer) -> float:
    """Token F1 of a span with the nearest right answer; without one, whether it says none."""
    golds = row.get("answers") or []
    if not golds:
        return float(not row["prediction"])
    return max(token_f1(row["prediction"], gold["text"], "1.1") for gold in golds)


def _confidence(row: Answer) -> float:
    said = (
        one["probability"] for one in row.get("nbest") or () if one["text"] == row["prediction"]
    )
    return float(next(said, 1.0))


class Confusion(NamedTuple):
    """Counts over all seeds."""

    classes: list[str]
    """In the order of the head's outputs."""
    counts: list[list[int]]
    """A row a right class, a column an answered one."""
    seeds: int
    """How many."""


def confusion(seeds: Sequence[Sequence[Answer]]) -> Confusion | None:
    """Count right and answered classes; None where answers are no classes, or too many ones."""
    rows = [row for answers in seeds for row in answers if "label" in row]
    if not rows or any(form_of(row) != "classes" for row in rows):
        return None
    seen = dict.fromkeys([*(rows[0].get("probabilities") or ()), *(row["label"] for row in rows)])
    names = [name for name in seen if isinstance(name, str)]
    if not 2 <= len(names) <= MOST_CLASSES:
        return None
    answered, right = ([row[key] for row in rows] for key in ("prediction", "label"))
    return Confusion(names, confusion_matrix(answered, right, names).tolist(), len(seeds))


class ClassScores(NamedTuple):
    """Of one class, fractions; 0 where nothing was answered or is right."""

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
