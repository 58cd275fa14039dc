"""Texts read off generated token ids, one row an example."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise

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
        Rows `{"id", "prediction", "score", "source_words", "label"}`; the score is the
        log-probability over the length penalty.
    """
    scores, ids = outputs[:, 0].astype(float), outputs[:, 1:].astype(int)
    read = (
        {
            "prediction": decode(row),
            "score": round(score, DIGITS),
            "source_words": sum(len(text.split()) for text in example.texts),
        }
        for score, row, example in zip(scores.tolist(), ids.tolist(), examples, strict=True)
    )
    return with_ids(read, examples)


def by_source_length(
    answers: Sequence[Answer], score: Callable[[Sequence[Answer]], dict[str, float]], parts: int = 5
) -> list[dict[str, float]]:
    """Score answers to short sources apart from those to long ones.

    Args:
        answers: Labelled rows of `text_answers`.
        score: Scores some of them.
        parts: Into how many parts they are divided, as equal as their lengths allow.

    Returns:
        For each part `least` and `most` words of a source, `examples` and the metrics.
    """
    rows = sorted(answers, key=lambda row: row["source_words"])
    words = [row["source_words"] for row in rows]
    starts = sorted({bisect_left(words, words[len(words) * n // parts]) for n in range(parts)})
    return [
        {"least": words[start], "most": words[end - 1], "examples": end - start}
        | score(rows[start:end])
        for start, end in pairwise([*starts, len(words)])
    ]
