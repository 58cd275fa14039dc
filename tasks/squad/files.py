"""Questions on passages, read from the official JSON of SQuAD, from its hub form, or from own rows.

Whatever the shape, a question comes out as an `Example` whose answers are passages of its context,
`context[start : start + len(text)]`. An answer that does not stand where its offset says is taken
from the nearest place where it does, as a `MovedAnswer`, so that the moves can be counted; one that
stands nowhere is an error. `plausible_answers` are never read: they are wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from finetune.console.output import counted
from finetune.errors import DataError
from finetune.files.unpacking import without_sheet
from finetune.task.interface import Example, GoldAnswer
from finetune.text.features.rows import read_rows
from tasks.own.columns import as_indicator
from tasks.sources import hub
from tasks.sources.reader import UniqueIds, decode, read_bytes

LEVELS = ("data", "paragraphs", "qas")
"""The lists that lead to a question in the official form, from the outermost."""

Row = Mapping[str, Any]
ROWS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".xlsx", ".xlsm")
"""Endings of own files with a question a row."""
FIRST = object()
"""In the place of `answer_start`: the first place where the text stands."""


class Release(NamedTuple):
    """Where a version of SQuAD is found; its test set is hidden."""

    hub: str
    """Its name on the hub."""
    files: Mapping[str, str]
    """Split -> official file name."""


OFFICIAL = {
    "1.1": Release("rajpurkar/squad", {"train": "train-v1.1.json", "validation": "dev-v1.1.json"}),
    "2.0": Release(
        "rajpurkar/squad_v2", {"train": "train-v2.0.json", "validation": "dev-v2.0.json"}
    ),
}
"""Version -> release."""


class MovedAnswer(GoldAnswer):
    """An answer that stands elsewhere than its file says: the nearest place where it does."""

    stated: int
    """Where its file says that it begins."""


class FoundAnswer(GoldAnswer):
    """An answer that is given as text alone: the first place where it stands."""

    is_unsure: bool
    """It stands elsewhere, too."""


class _Question(NamedTuple):
    """A row that is checked; whether the file as a whole withholds its answers is not known yet."""

    where: str
    """File, place and id, for messages."""
    example: Example
    """With the answers that are given, or None where none is."""
    impossible: bool | None
    """What `is_impossible` says."""
    has_field: bool
    """The row has `answers`, though perhaps none in it."""


def read_official(path: Path, version: str, *, labelled: bool) -> list[Example]:
    """Read a file of SQuAD.

    Args:
        path: JSON in UTF-8; gzip-compressed if it ends in .gz.
        version: `1.1` or `2.0`: what the file must be.
        labelled: The answers are needed; otherwise a file that withholds them all is read too.

    Returns:
        Its questions in order. The label is None in a file that withholds all answers.

    Raises:
        DataError: The file is unreadable, of another shape or version, or withholds answers that
            are needed; an id is missing or doubled; an answer is not in its context.
    """
    document = _load(path)
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise DataError(
            f"{path}: expected the JSON of SQuAD, an object with a list 'data'; "
            f"got {_kind(document)}"
        )
    questions = list(_checked(_questions(document, str(path)), str(path)))
    actual = _version(document.get("version"), questions)
    if actual not in (version, None):
        unanswerable = sum(question.impossible is True for question in questions)
        raise DataError(
            f"{path}: expected SQuAD {version}, got {actual} (version "
            f"{document.get('version')!r}, {unanswerable} of {len(questions)} questions "
            f"unanswerable); run `finetune squad {actual}` or name a file of {version}"
        )
    return _examples(questions, str(path), labelled=labelled, empty_is_unanswerable=False)


def read_own(path: Path, *, labelled: bool) -> list[Example]:
    """Read the user's questions: the official form, or a row a question, as JSON or JSON Lines.

    A row has `question`, `context` and `answers`: a list of `{"text", "answer_start"}`, or
    `{"text": […], "answer_start": […]}` as on the hub, or texts alone (`answers` or `answer`), of
    which the first place in the context is taken. Empty answers say that the context holds none,
    if any other question of the file is answered. Without an `id`, the id is the row's number.

    Args:
        path: `.jsonl`, `.csv`, `.tsv`, `.parquet` or `.xlsx`, or else JSON; each also with `.gz`.
        labelled: As for `read_official`.

    Returns:
        Its questions in order.

    Raises:
        DataError: As for `read_official`; the version is not looked at.
    """
    rows: Iterable[tuple[str, Any]]
    if without_sheet(path).lower().removesuffix(".gz").endswith(ROWS):
        rows = read_rows(path)
    else:
        rows = [(str(path), _load(path))]
    questions = _checked(
        (question for where, row in rows for question in _questions(row, where)),
        str(path),
        needs_id=False,
    )
    return _examples(list(questions), str(path), labelled=labelled, empty_is_unanswerable=True)


def read_hub_rows(rows: Iterable[Row], where: str) -> list[Example]:
    """Read rows as the hub has them: without answers where the context contains none.

    Raises:
        DataError: A row lacks a field, or an answer is not in its context.
    """
    places = ((f"{where} row {number}", row) for number, row in enumerate(rows))
    questions = list(_checked(places, where))
    return _examples(questions, where, labelled=True, empty_is_unanswerable=True)


def hub_examples(version: str, split: str) -> list[Example]:
    """Read a split from the hub.

    Raises:
        DataError: `datasets` is not installed, or the hub cannot be reached.
    """
    return read_hub_rows(hub_split(version, split), f"{OFFICIAL[version].hub} {split}")


def hub_split(version: str, split: str) -> Any:
    """The rows of a split as the hub has them."""
    return hub.hub_split(OFFICIAL[version].hub, None, split, f"squad/{version}", "squad")


def text_of(row: Row, field: str, where: str) -> str:
    """Take a text as it stands, spaces at its ends included.

    Raises:
        DataError: The field is missing, is no text, or holds half a character.
    """
    text = row.get(field)
    if not isinstance(text, str):
        fields = ", ".join(map(str, row)) or "(none)"
        kind = _kind(text) if field in row else f"the fields {fields}"
        raise DataError(f"{where}: expected the text '{field}', got {kind}")
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: expected '{field}' to be Unicode, got half of a surrogate pair at "
            f"character {error.start}; write the whole character"
        ) from error
    return text


def _load(path: Path) -> Any:
    text = decode(read_bytes(path), path)
    if not text.strip():
        raise DataError(f"{path}: expected questions as JSON, got an empty file")
    return _parse(text, path)


def _parse(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            hint = "a file with a row a line must end in .jsonl"
        else:
            hint = "is the file complete?"
        raise DataError(
            f"{path}:{error.lineno}: expected JSON, got at column {error.colno} of this line: "
            f"{error.msg}; {hint}"
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deeply; a number of 5,000 digits
        raise DataError(f"{path}: expected JSON of SQuAD's shape, got: {error}") from error


def _questions(node: Any, where: str) -> Iterator[tuple[str, Row]]:
    """Walk down to the rows that hold a question, each with its place and its context."""
    if isinstance(node, list):
        node = {LEVELS[0]: node}
    if not isinstance(node, dict):
        raise DataError(f"{where}: expected an object, got {_kind(node)}")
    level = next((name for name in LEVELS if name in node), None)
    if level is None or "question" in node:
        yield where, node
        return
    if not isinstance(node[level], list):
        raise DataError(f"{where}: expected '{level}' to be a list, got {_kind(node[level])}")
    above = {"context": text_of(node, "context", where)} if level == "qas" else {}
    colon = "." if where.endswith("]") else ": "
    for number, child in enumerate(node[level]):
        inside = f"{where}{colon}{level}[{number}]"
        yield from _questions({**child, **above} if isinstance(child, dict) else child, inside)


def _checked(
    rows: Iterable[tuple[str, Row]], file: str, *, needs_id: bool = True
) -> Iterator[_Question]:
    """Check each row on its own, and that no id comes twice."""
    ids, known = UniqueIds(), None
    for number, (where, row) in enumerate(rows):
        known = number if not needs_id and row.get("id") in (None, "") else _id(row, where)
        ids.add(known, where)
        yield _question(row, known, f"{where}: question {known!r}", is_own=not needs_id)
    if known is None:
        raise DataError(f"{file}: expected questions, got none")


def _id(row: Row, where: str) -> int | str:
    known = row.get("id")
    if isinstance(known, int) and not isinstance(known, bool):
        return known
    if "id" in row and not text_of(row, "id", where):
        raise DataError(f"{where}: expected an id, got an empty text")
    return text_of(row, "id", where)


def _question(row: Row, known: int | str, where: str, *, is_own: bool) -> _Question:
    question, context = text_of(row, "question", where), text_of(row, "context", where)
    impossible = row.get("is_impossible")
    if is_own and isinstance(impossible, str):  # as a cell of a table has it
        known_word = as_indicator(impossible)
        impossible = (impossible.strip() or None) if known_word is None else known_word
    if impossible is not None and not isinstance(impossible, bool):
        raise DataError(f"{where}: expected is_impossible true or false, got {impossible!r}")
    given = row.get("answers", row.get("answer"))
    if is_own:
        given = _without_places(given)
    listed = _listed(given, where)
    if impossible and listed:
        raise DataError(f"{where}: expected no answers where is_impossible is true, got some")
    if impossible is False and not listed:
        raise DataError(f"{where}: expected answers where is_impossible is false, got none")
    golds = tuple(_gold(answer, context, where) for answer in listed)
    example = Example(known, (question, context), golds or (() if impossible else None))
    return _Question(where, example, impossible, given is not None)


def _without_places(answers: Any) -> Any:
    """Texts alone as a list of objects; other forms as they are. An empty text is no answer."""
    texts = [answers] if isinstance(answers, str) else answers
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return answers
    return [{"text": text, "answer_start": FIRST} for text in texts if text]


def _listed(answers: Any, where: str) -> Sequence[Row]:
    """The answers as a list of objects; the hub has them as two lists side by side."""
    if answers is None:
        return ()
    if isinstance(answers, dict):
        sides: list[Any] = [answers.get(name) for name in ("text", "answer_start")]
        if not all(isinstance(side, list) for side in sides) or len(sides[0]) != len(sides[1]):
            raise DataError(
                f"{where}: expected answers with lists 'text' and 'answer_start' of the same "
                f"length, got {json.dumps(answers)[:80]}"
            )
        answers = [{"text": a, "answer_start": b} for a, b in zip(*sides, strict=True)]
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise DataError(
            f"{where}: expected answers to be a list of objects with 'text' and 'answer_start', "
            f"got {json.dumps(answers)[:80]}"
        )
    return answers


def _gold(answer: Row, context: str, where: str) -> GoldAnswer:
    text, start = text_of(answer, "text", where), answer.get("answer_start")
    if start is FIRST and text:
        start = _nearest(text, 0, context, where)
        located = FoundAnswer(text, start)
        located.is_unsure = context.find(text, start + 1) >= 0
        return located
    if isinstance(start, float) and start.is_integer():
        start = int(start)  # tables of numbers, such as pandas makes, have 3.0 for 3
    if not isinstance(start, int) or isinstance(start, bool):
        raise DataError(
            f"{where}: expected answer_start, a whole number of characters, beside the answer "
            f"{text[:40]!r}; got {'nothing' if start is None else json.dumps(start)[:40]}; "
            "write the number of the context's characters before the answer, without quotes"
        )
    if not text:
        raise DataError(
            f"{where}: expected an answer, got an empty text; leave `answers` empty where the "
            "context contains none"
        )
    if start >= 0 and context.startswith(text, start):
        return GoldAnswer(text, start)
    moved = MovedAnswer(text, _nearest(text, start, context, where))
    moved.stated = start
    return moved


def _nearest(text: str, start: int, context: str, where: str) -> int:
    """Where a text stands that is nearest to a character; the earlier of two."""
    before = context.rfind(text, 0, max(start, 0) + len(text))
    after = context.find(text, max(start, 0))
    starts = [position for position in (before, after) if position >= 0]
    if not starts:
        raise DataError(
            f"{where}: expected the answer {text[:40]!r} in its context at character {start}, "
            "got it nowhere; an answer must be a passage of the context, letter by letter"
        )
    return min(starts, key=lambda position: abs(position - start))


def _version(named: Any, questions: Sequence[_Question]) -> str | None:
    """Say of which version a file is; what its questions say goes before what it calls itself."""
    flags = {question.impossible for question in questions}
    if True in flags:
        return "2.0"
    leading = str(named).lower().removeprefix("v")[:1]
    if leading in ("1", "2"):
        return {"1": "1.1", "2": "2.0"}[leading]
    if False in flags:
        return "2.0"
    return "1.1" if any(question.example.label for question in questions) else None


def _examples(
    questions: Sequence[_Question], file: str, *, labelled: bool, empty_is_unanswerable: bool
) -> list[Example]:
    """Settle what it means that a question is given without an answer."""
    unknown = [question for question in questions if question.example.label is None]
    if not unknown:
        return [question.example for question in questions]
    if len(unknown) == len(questions):
        if labelled:
            raise DataError(
                f"{file}: expected answers, got none and no is_impossible in any of "
                f"{counted(len(questions), 'question')}: they are withheld; name the file as --test"
            )
        return [question.example for question in questions]
    stranger = next((one for one in unknown if not (empty_is_unanswerable and one.has_field)), None)
    if stranger is not None:
        hint = "answers: []" if empty_is_unanswerable else "is_impossible: true"
        raise DataError(
            f"{stranger.where}: expected answers as in the other questions, got none; "
            f"say `{hint}` if the context contains none"
        )
    return [replace(question.example, label=question.example.label or ()) for question in questions]


def _kind(value: Any) -> str:
    """What a JSON value is, for messages."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    names |= {int: "a number", float: "a number", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
