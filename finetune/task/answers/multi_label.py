"""The classes that hold, read off one logit a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.task.answers.classes import DIGITS, with_ids
from finetune.task.interface import Answer, Example, Outputs

THRESHOLD = 0.5
"""A class holds where its probability is above this."""


def sigmoid(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Probability of each logit; exact at any size, because tanh does not overflow."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * logits.astype(float))))


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
    shares = sigmoid(outputs)  # (N, C)
    rows = zip((shares > THRESHOLD).tolist(), shares.round(DIGITS).tolist(), strict=True)
    read = (
        {
            "prediction": [name for name, holds in zip(names, held, strict=True) if holds],
            "probabilities": dict(zip(names, row, strict=True)),
        }
        for held, row in rows
    )
    return lists(with_ids(read, examples))


def lists(answers: Sequence[Answer]) -> list[Answer]:
    """The same answers with lists of classes in place of tuples, as a file gives them back."""
    return [
        {key: list(value) if isinstance(value, tuple) else value for key, value in answer.items()}
        for answer in answers
    ]
