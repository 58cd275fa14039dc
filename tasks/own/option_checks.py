"""What is wrong with the options of a whole file of questions: uneven, missing or doubled ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.console.output import counted
from finetune.errors import DataError
from finetune.task.interface import Example
from finetune.text.tokenizer.visible import is_empty
from tasks.own.options import FEWEST_OPTIONS, MOST_OPTIONS, OPTIONS, letters, options_of

Rows = Sequence[tuple[str, Mapping[str, Any]]]
"""Where each row is, and its fields, unfolded."""
_LISTED = 5
"""Rows that a message names."""


def check_options(rows: Rows, path: object) -> None:
    """Refuse questions with different numbers of options, or with one that has no text.

    Args:
        rows: Of the whole file.
        path: The file, for the message.

    Raises:
        DataError: There are some; it counts them and names the first.
    """
    options = [(where, options_of(row, where)) for where, row in rows]
    _check_counts(options, rows, path)
    holes = [where for where, texts in options if any(map(_is_hole, texts))]
    if holes:
        texts = next(texts for where, texts in options if where == holes[0])
        letter = next(
            name for name, text in zip(letters(len(texts)), texts, strict=False) if _is_hole(text)
        )
        raise DataError(
            f"{holes[0]}: expected a text for every option, got option {letter} empty, and an "
            f"empty one in {len(holes):,} of {len(rows):,} questions ({_listed(holes)}); write "
            "the missing texts, or remove these questions"
        )


def _check_counts(options: Sequence[tuple[str, list[Any]]], rows: Rows, path: object) -> None:
    counts = Counter(len(texts) for _, texts in options)
    usual = counts.most_common(1)[0][0]
    where, odd = next((one for one in options if len(one[1]) != usual), ("", []))
    if len(counts) < 2 or not FEWEST_OPTIONS <= len(odd) <= MOST_OPTIONS:
        return  # a question with no options, or with too many, is refused by itself
    first = {len(texts): _line(place) for place, texts in reversed(options)}
    found = ", ".join(
        f"{count} in {number:,} (first in line {first[count]})"
        for count, number in counts.most_common()
    )
    way_out = f"keep the questions with {usual} options"
    field = next((name for name in OPTIONS if all(name in row for _, row in rows)), None)
    if field is not None and str(path).endswith((".jsonl", ".ndjson")):
        way_out += f" (jq -c 'select(.{field} | length == {usual})' FILE)"
    raise DataError(
        f"{where}: expected {usual} options ({', '.join(letters(usual))}) for every question, "
        f"got {len(odd)}; of the file's {len(rows):,} questions there are {found}; {way_out}, or "
        "train a run for each number"
    )


def _is_hole(option: Any) -> bool:
    return not isinstance(option, (str, int, list, dict)) or (
        isinstance(option, str) and is_empty(option)
    )


def _line(where: str) -> str:
    return where.rpartition(":")[2]


def _listed(places: Sequence[str]) -> str:
    lines = ", ".join(map(_line, places[:_LISTED]))
    return f"lines {lines}{', …' * (len(places) > _LISTED)}"


def doubled_options(examples: Sequence[Example]) -> list[str]:
    """Say how many questions have an option twice: both of them are right, or both are wrong."""
    doubled = [
        (example, text)
        for example in examples
        for text, count in Counter(map(str.strip, example.texts[2:])).items()
        if count > 1
    ]
    if not doubled:
        return []
    example, text = doubled[0]
    questions = len({one.id for one, _ in doubled})
    return [
        f"{questions:,} of {counted(len(examples), 'question')} "
        f"{'has' if questions == 1 else 'have'} the same option twice, of which one "
        f"counts as wrong whatever it says; the first is {text[:40]!r} of question {example.id!r}; "
        "correct them, or remove these questions"
    ]
