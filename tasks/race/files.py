"""RACE's passages: the JSON of a file, and the rows of the hub, checked and made examples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from finetune.console.output import counted
from finetune.errors import DataError
from finetune.task.interface import Example
from tasks.own.options import letters, shown
from tasks.sources import hub
from tasks.sources.reader import decode

HUB = "ehovy/race"
LETTERS = letters(4)
"""Of the options that every question has."""


def read_passage(content: bytes, where: str, *, answered: bool) -> dict[str, Any]:
    """Read and check the JSON of one passage.

    Args:
        content: Of the file.
        where: Its name, for the message.
        answered: The right options must be there.

    Returns:
        `id`, `article`, `questions`, `options` and, where they are known, `answers`.

    Raises:
        DataError: It is no JSON of this form; the lists differ in length; a question has not four
            options; an answer is not one of their letters.
    """
    try:
        passage = json.loads(decode(content, where))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: expected JSON, got: {error}") from error
    if not isinstance(passage, dict):
        raise DataError(f"{where}: expected a JSON object, got {shown(passage)}")
    for name in ("id", "article"):
        _check(isinstance(_field(passage, name, where), str), "a text", passage, name, where)
    for name in ("questions", "answers") if answered or "answers" in passage else ("questions",):
        _check(_are_texts(_field(passage, name, where)), "a list of texts", passage, name, where)
    options = _field(passage, "options", where)
    lists = isinstance(options, list) and all(map(_are_texts, options))
    _check(lists, "a list of lists of texts", passage, "options", where)
    _check_counts(passage, where)
    return passage


def _field(passage: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in passage:
        fields = ", ".join(passage) or "none"
        raise DataError(f"{where}: expected a field {name}, got the fields {fields}")
    return passage[name]


def _check(holds: bool, form: str, passage: Mapping[str, Any], name: str, where: str) -> None:
    if not holds:
        raise DataError(f"{where}: expected '{name}' to be {form}, got {shown(passage[name])}")


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _check_counts(passage: Mapping[str, Any], where: str) -> None:
    count = len(passage["questions"])
    for name in ("options", "answers"):
        if name in passage and len(passage[name]) != count:
            raise DataError(
                f"{where}: expected {name} for each of {counted(count, 'question')}, got "
                f"{len(passage[name])}"
            )
    for number, options in enumerate(passage["options"]):
        check_options(options, f"{where}: question {number}")
    for number, answer in enumerate(passage.get("answers", ())):
        check_answer(answer, f"{where}: question {number}")


def check_options(options: Sequence[str], where: str) -> None:
    """Refuse a question that has not four options."""
    if len(options) != len(LETTERS):
        raise DataError(f"{where}: expected {len(LETTERS)} options, got {len(options)}")


def check_answer(answer: Any, where: str) -> None:
    """Refuse an answer that is not the letter of an option."""
    if answer not in LETTERS:
        raise DataError(f"{where}: expected an answer of {', '.join(LETTERS)}, got {shown(answer)}")


def questions(passage: Mapping[str, Any], level: str) -> Iterator[Example]:
    """The questions of a passage that `read_passage` has checked; there may be none."""
    answers = passage.get("answers", [None] * len(passage["questions"]))
    rows = zip(passage["questions"], passage["options"], answers, strict=True)
    for number, (question, options, answer) in enumerate(rows):
        texts = (passage["article"], question, *options)
        yield Example(f"{passage['id']}/{number}", texts, answer, group=level)


def hub_examples(rows: Iterable[Mapping[str, Any]]) -> Iterator[Example]:
    """Read the rows of the hub: each is a question, and those of a passage share an id."""
    numbers: Counter[str] = Counter()
    for row in rows:
        passage = row["example_id"]
        where = f"{HUB} {passage}/{numbers[passage]}"
        check_options(row["options"], where)
        check_answer(row["answer"], where)
        yield Example(
            id=f"{passage}/{numbers[passage]}",
            texts=(row["article"], row["question"], *row["options"]),
            label=row["answer"],
            group="middle" if passage.startswith("middle") else "high",
        )
        numbers[passage] += 1


def hub_split(name: str, split: str) -> Any:
    """The rows of a split as the hub has them."""
    return hub.hub_split(HUB, name, split, f"race/{name}", "race")
