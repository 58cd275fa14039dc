"""Tables of a run's answers on a split: the hardest examples with their texts, and counts of all.

Which tables there are follows from the fields of the rows (`predictions`): classes have a confusion
matrix and scores, spans a list of the best ones and the odds of none, options are listed one by
one. No task is known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finetune.comparison.answers import (
    class_scores,
    confusion,
    form_of,
    is_right,
    span_f1,
    wrongness,
)
from finetune.task.interface import Answer, Example
from finetune.tracking import Table

LONGEST_TEXT = 1000
"""Characters of a cell."""
MOST_CLASSES = 20
"""Classes that have a column of probabilities."""
BEST = 5
"""Spans that are listed of a question."""
NONE = "(no answer)"
"""What a cell says of a question that has none."""
CONFUSION = "wandb/confusion_matrix/v1"
"""The chart of a table of confusions."""

Cells = dict[str, Any]


def answer_tables(
    split: str, rows: Sequence[Answer], examples: Mapping[int | str, Example], most: int
) -> list[Table]:
    """The tables of a split.

    Args:
        split: Its name.
        rows: Its predictions file.
        examples: Its examples by id.
        most: Examples that are listed, the hardest first.

    Returns:
        `predictions/SPLIT`; for spans `nbest/SPLIT`; for options `options/SPLIT`; for classes
        whose gold is known `confusion/SPLIT` and `classes/SPLIT`, which count all rows.
    """
    hard = hardest(rows)[:most]
    tables = [
        _table(f"predictions/{split}", [_answer(row, examples.get(row["id"])) for row in hard])
    ]
    pairs = [(row, examples[row["id"]]) for row in hard if row["id"] in examples]
    for name, lines in (
        ("nbest", [line for row, example in pairs for line in _spans(row, example)]),
        ("options", [line for row, example in pairs for line in _options(row, example)]),
    ):
        if lines:
            tables.append(_table(f"{name}/{split}", lines))
    return [*tables, *_counts(split, rows)]


def hardest(rows: Sequence[Answer]) -> list[Answer]:
    """Rows by how wrong they are, the worst first; without gold, by how unsure they are."""
    known = [row for row in rows if "label" in row or "answers" in row]
    if known:
        return sorted(known, key=lambda row: -wrongness(row))
    return sorted(rows, key=lambda row: _probability(row) or 0.0)


def _table(name: str, lines: Sequence[Cells]) -> Table:
    columns = list(dict.fromkeys(column for line in lines for column in line))
    return Table(name, columns, [[line.get(column) for column in columns] for line in lines])


def _answer(row: Answer, example: Example | None) -> Cells:
    """One line of the table of answers."""
    form = form_of(row)
    line: Cells = {"id": str(row["id"])}
    if example is not None:
        line |= {"group": example.group} if example.group else {}
        line |= _texts(row, example)
    said = _said(row["prediction"])
    line |= {"gold": _gold(row), "prediction": NONE if form == "span" and not said else said}
    if "label" in row or "answers" in row:
        number = form == "number"
        line |= {"error": wrongness(row)} if number else {"right": is_right(row)}
    if form == "span":
        line |= {"f1": span_f1(row)} if "answers" in row else {}
        line |= {"probability": _probability(row), "null odds": row.get("null_odds")}
        return line
    if (share := _probability(row)) is not None:
        line["probability"] = share
    shares = row.get("probabilities") or {}
    return line | {f"p {name}": share for name, share in list(shares.items())[:MOST_CLASSES]}


def _texts(row: Answer, example: Example) -> Cells:
    """The texts under names that tell what they are, as far as the row tells it."""
    texts = [_cut(text) for text in example.texts]
    if form_of(row) == "span":
        return dict(zip(("question", "context"), texts, strict=False))
    if _has_options(row, example):
        named = zip(row["probabilities"], texts[2:], strict=True)
        options = _cut("\n".join(f"{name}: {text}" for name, text in named))
        return {"passage": texts[0], "question": texts[1], "options": options}
    if len(texts) == 1:
        return {"text": texts[0]}
    return {f"text {number}": text for number, text in enumerate(texts, start=1)}


def _has_options(row: Answer, example: Example) -> bool:
    """Whether the classes are options that the example itself brings."""
    shares = row.get("probabilities") or {}
    return form_of(row) == "classes" and 2 <= len(shares) == len(example.texts) - 2


def _gold(row: Answer) -> Any:
    if form_of(row) == "span":
        golds = row.get("answers")
        texts = dict.fromkeys(gold["text"] for gold in golds or ())
        return None if golds is None else _said(texts) or NONE
    return _said(row.get("label"))


def _said(answer: Any) -> Any:
    """An answer as one cell: numbers as they are, several classes or texts in one line."""
    if answer is None or isinstance(answer, int | float):
        return answer
    return _cut(answer if isinstance(answer, str) else " | ".join(map(str, answer)))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"


def _probability(row: Answer) -> float | None:
    """Of what was answered; None for numbers and for classes of which several hold."""
    if form_of(row) == "span":
        best = row.get("nbest") or ()
        found = (one["probability"] for one in best if one["text"] == row["prediction"])
        return next(found, None)
    if form_of(row) != "classes":
        return None
    share = (row.get("probabilities") or {}).get(row["prediction"])
    return None if share is None else float(share)


def _spans(row: Answer, example: Example) -> Iterator[Cells]:
    """The best spans of a question, a line each."""
    if form_of(row) != "span":
        return
    golds = {gold["text"] for gold in row.get("answers") or ()}
    for rank, one in enumerate((row.get("nbest") or ())[:BEST], start=1):
        yield {
            "id": str(row["id"]),
            "question": _cut(example.texts[0]),
            "rank": rank,
            "text": _cut(one["text"]) or NONE,
            "probability": one["probability"],
            "right": one["text"] in golds or not (one["text"] or golds),
            "chosen": one["text"] == row["prediction"],
            "null odds": row.get("null_odds"),
        }


def _options(row: Answer, example: Example) -> Iterator[Cells]:
    """The options of a question, a line each."""
    if not _has_options(row, example):
        return
    for (name, share), text in zip(row["probabilities"].items(), example.texts[2:], strict=True):
        yield {
            "id": str(row["id"]),
            "question": _cut(example.texts[1]),
            "option": name,
            "text": _cut(text),
            "probability": share,
            "right": name == row.get("label"),
            "chosen": name == row["prediction"],
        }


def _counts(split: str, rows: Sequence[Answer]) -> list[Table]:
    """The confusion matrix, as its chart wants it, and the scores of each class."""
    matrix = confusion([rows])
    if matrix is None:
        return []
    cells = [
        [gold, said, count]
        for gold, line in zip(matrix.classes, matrix.counts, strict=True)
        for said, count in zip(matrix.classes, line, strict=True)
    ]
    scores = [
        [name, *map(float, one[:3]), one.support]
        for name, one in zip(matrix.classes, class_scores(matrix), strict=True)
    ]
    return [
        Table(f"confusion/{split}", ["Actual", "Predicted", "nPredictions"], cells, CONFUSION),
        Table(f"classes/{split}", ["class", "precision", "recall", "f1", "examples"], scores),
    ]
