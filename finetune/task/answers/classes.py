"""Classes, options and numbers read off logits, one row an example."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.task.interface import Answer, Example, Outputs

DIGITS = 6
"""Decimal places of what is written to a predictions file."""


def softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probabilities of each row, (N, C) -> (N, C)."""
    odds = np.exp(logits.astype(float) - logits.max(axis=1, keepdims=True))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


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
    shares = softmax(outputs).round(DIGITS).tolist()  # (N, C)
    read = (
        {"prediction": names[choice], "probabilities": dict(zip(names, row, strict=True))}
        for choice, row in zip(best, shares, strict=True)
    )
    return with_ids(read, examples)


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
    numbers = outputs.astype(float).clip(low, high).round(DIGITS).tolist()
    return with_ids(({"prediction": number} for number in numbers), examples)


def constant_answers(prediction: Any, examples: Sequence[Example]) -> list[Answer]:
    """The same prediction for every example."""
    return with_ids(({"prediction": prediction} for _ in examples), examples)


def with_ids(read: Iterable[Answer], examples: Sequence[Example]) -> list[Answer]:
    """Put the id before what was read, and the label, where it is known, behind it."""
    return [
        {"id": example.id, **answer} | ({} if example.label is None else {"label": example.label})
        for example, answer in zip(examples, read, strict=True)
    ]
