"""Texts read off generated token ids, one row an example."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from finetune.task.answers.classes import with_ids
from finetune.task.interface import Answer, Example, Outputs

DIGITS = 6
"""Decimal places of scores in a predictions file."""


def text_answers(
    outputs: Outputs, examples: Sequence[Example], decode: Callable[[Sequence[int]], str]
) -> list[Answer]:
    """The text that was written for each example.

    Args:
        outputs: A score and token ids, as `heads.Seq2Seq.generate` gives them (N, 1 + S).
        examples: The N examples.
        decode: Token ids -> text, special tokens left out.

    Returns:
        Rows `{"id", "prediction", "score", "label"}`; the score is the log-probability over the
        length penalty.
    """
    scores, ids = outputs[:, 0].astype(float), outputs[:, 1:].astype(int)
    read = (
        {"prediction": decode(row), "score": round(score, DIGITS)}
        for score, row in zip(scores.tolist(), ids.tolist(), strict=True)
    )
    return with_ids(read, examples)
