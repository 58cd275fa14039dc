"""Classes, options and numbers read off logits, one row an example."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.metrics.calibration import best_thresholds
from finetune.metrics.classes import indicators
from finetune.task.interface import Answer, Example, Outputs
from finetune.text.features.pairs import Features

DIGITS = 9
"""Significant digits of what is written to a predictions file; float32 has no more."""
THRESHOLD = 0.5
"""A class among several of an example holds where its probability is above this, unless a threshold
was chosen for it."""
CHOSEN = "threshold/"
"""What stands before a class in the name of its threshold in a decision."""


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probabilities of each row, (N, C) -> (N, C)."""
    odds = np.exp(logits.astype(float) - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probability of each logit; nothing overflows, and small ones keep their digits."""
    return np.asarray(np.exp(-np.logaddexp(0, -logits.astype(float))))


def rounded(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round to 9 significant digits of the probability, or of its distance from 1 if that is less.

    Decimal places would make ties of small probabilities: an area under a ROC curve would change.
    """
    rarer = np.minimum(probabilities, 1 - probabilities)
    # 10^22 is the largest power of ten that is exact.
    scale = 10 ** np.clip(DIGITS - 1 - np.floor(np.log10(np.maximum(rarer, 1e-30))), 0, 22)
    values = np.round(probabilities * scale) / scale
    near_one = (probabilities > 0.5) & (scale > 1e15)  # a larger product has no decimals to round
    return np.asarray(np.where(near_one, 1 - np.round(rarer * scale) / scale, values))


def class_answers(
    outputs: Outputs, examples: Sequence[Example], names: Sequence[str]
) -> list[Answer]:
    """The most probable class or option of each example, with all probabilities.

    Args:
        outputs: Logits (N, C).
        examples: The N examples.
        names: The C names in the order of the logits.

    Returns:
        Rows `{"id", "prediction", "probabilities", "label"}`.
    """
    best = outputs.argmax(axis=1).tolist()  # (N,)
    probabilities = rounded(softmax(outputs)).tolist()  # (N, C)
    read = (
        {"prediction": names[choice], "probabilities": dict(zip(names, row, strict=True))}
        for choice, row in zip(best, probabilities, strict=True)
    )
    return with_ids(read, examples)


def multi_label_answers(
    outputs: Outputs, examples: Sequence[Example], names: Sequence[str]
) -> list[Answer]:
    """The classes of each example whose probability is above one half, with all probabilities.

    Args:
        outputs: Logits (N, C).
        examples: The N examples.
        names: The C names in the order of the logits.

    Returns:
        Rows `{"id", "prediction": [name, …], "probabilities", "label": [name, …]}`, the names in
        the order of `names`; the probabilities do not sum to 1.
    """
    probabilities = sigmoid(outputs)  # (N, C)
    rows = zip((probabilities > THRESHOLD).tolist(), rounded(probabilities).tolist(), strict=True)
    read = (
        {
            "prediction": [name for name, holds in zip(names, positive, strict=True) if holds],
            "probabilities": dict(zip(names, row, strict=True)),
        }
        for positive, row in rows
    )
    return lists(with_ids(read, examples))


def chosen_thresholds(answers: Sequence[Answer], names: Sequence[str]) -> dict[str, float]:
    """The threshold of the best F1 of each class on labelled answers, for a decision.

    Args:
        answers: Rows of `multi_label_answers`.
        names: The C classes.

    Returns:
        `threshold/CLASS` -> a probability; {} where an answer has no label.
    """
    if not answers or any("label" not in row for row in answers):
        return {}
    probabilities = [[row["probabilities"][name] for name in names] for row in answers]
    true = indicators([row["label"] for row in answers], names)
    thresholds = best_thresholds(probabilities, true).tolist()
    return {CHOSEN + name: value for name, value in zip(names, thresholds, strict=True)}


def decide_classes(answers: Sequence[Answer], numbers: Mapping[str, float]) -> list[Answer]:
    """The same answers, each class decided by the threshold that was chosen for it, or 0.5."""
    if not any(name.startswith(CHOSEN) for name in numbers):
        return list(answers)
    return [row | {"prediction": _above(row["probabilities"], numbers)} for row in answers]


def _above(probabilities: Mapping[str, float], numbers: Mapping[str, float]) -> list[str]:
    return [
        name
        for name, value in probabilities.items()
        if value > numbers.get(CHOSEN + name, THRESHOLD)
    ]


def number_answers(
    outputs: Outputs, examples: Sequence[Example], low: float = -np.inf, high: float = np.inf
) -> list[Answer]:
    """The number predicted for each example, clipped to [low, high].

    Args:
        outputs: (N,).
        examples: The N examples.
        low: The lowest legal number.
        high: The highest legal number.

    Returns:
        Rows `{"id", "prediction", "label"}`.
    """
    numbers = outputs.astype(float).clip(low, high).tolist()
    read = ({"prediction": float(f"{number:.{DIGITS}g}")} for number in numbers)
    return with_ids(read, examples)


def constant_answers(prediction: Any, examples: Sequence[Example]) -> list[Answer]:
    """The same prediction for every example."""
    return with_ids(({"prediction": prediction} for _ in examples), examples)


def with_ids(read: Iterable[Answer], examples: Sequence[Example]) -> list[Answer]:
    """Put the id before what was read, and the label, where it is known, behind it."""
    return [
        {"id": example.id, **answer} | ({} if example.label is None else {"label": example.label})
        for example, answer in zip(examples, read, strict=True)
    ]


def lists(answers: Sequence[Answer]) -> list[Answer]:
    """The same answers with lists of classes in place of tuples, as a file gives them back."""
    return [
        {key: list(value) if isinstance(value, tuple) else value for key, value in answer.items()}
        for answer in answers
    ]


def over_windows(outputs: Outputs, features: Sequence[Features], kind: str) -> Outputs:
    """The outputs of examples from those of their windows.

    Args:
        outputs: Of each window, (U, C) or (U,).
        features: Those of the windows, in order and R each: the options of a question, or one.
        kind: Of the head: of `classification` and `choice` the probabilities are averaged, of
            `multi_label` those of each class, of `regression` the numbers.

    Returns:
        (N, C) or (N,): logits whose softmax (or sigmoid) is the average; the outputs as they are
        where no example has two windows.
    """
    if not features or features[0].example is None:
        return outputs
    of_units = features[:: len(features) // len(outputs)]
    owners = np.array([feature.example for feature in of_units], dtype=np.int64)
    counts = np.bincount(owners)
    if (counts == 1).all():
        return outputs
    values = outputs.astype(np.float64)
    if kind == "multi_label":
        holds, fails = -np.logaddexp(0, -values), -np.logaddexp(0, values)
        return _log_mean(holds, owners, counts) - _log_mean(fails, owners, counts)
    if kind == "regression":
        return np.bincount(owners, values) / counts
    # Of an option that is not there the logit is the lowest number, or minus infinity.
    shifted = values - values.max(axis=1, keepdims=True)
    return _log_mean(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)), owners, counts)


def _log_mean(
    logs: Outputs, owners: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Outputs:
    """Logarithms of the means of numbers that are given by theirs, (U, C) -> (N, C)."""
    sums = np.full((len(counts), logs.shape[1]), -np.inf)
    np.logaddexp.at(sums, owners, logs)
    return sums - np.log(counts)[:, None]
