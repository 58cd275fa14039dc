"""Answers of all seeds of a run, example by example: what was said, how sure, and how wrong.

Which form a row of a predictions file has, its fields say; no task is known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from finetune.comparison import Answer
from finetune.metrics.spans import token_f1
from finetune.report.collecting import ReportedRun, mean

Form = Literal["classes", "classes that hold", "number", "span"]


@dataclass(frozen=True)
class Judged:
    """One example with the answers of every seed."""

    id: int | str
    """Its id in the data."""
    rows: tuple[Answer, ...]
    """A row a seed."""
    wrong: float
    """How wrong the answers are: comparable within one form, higher is worse."""

    @property
    def first(self) -> Answer:
        """The first seed's row."""
        return self.rows[0]

    @property
    def label(self) -> Any:
        """The gold."""
        return self.first.get("label")


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


def judged(seeds: Sequence[Sequence[Answer]]) -> list[Judged]:
    """Every labelled example that all seeds answered, in the order of the file.

    Args:
        seeds: Of each seed its rows.
    """
    by_id = [{row["id"]: row for row in rows} for rows in seeds]
    found = []
    for row in seeds[0] if seeds else ():
        rows = tuple(answers[row["id"]] for answers in by_id if row["id"] in answers)
        if len(rows) == len(seeds) and ("label" in row or "answers" in row):
            found.append(Judged(row["id"], rows, mean(map(wrongness, rows)) or 0.0))
    return found


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
        distances = (abs((name in held) - share) for name, share in row["probabilities"].items())
        return mean(distances) or 0.0
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


def answers_of(run: ReportedRun) -> tuple[str, list[list[Answer]]]:
    """The scored split of a run and the rows of each seed that has some.

    Raises:
        DataError: A line of a file is no answer.
    """
    if run.group is None:
        return "", []
    for split in _splits(run):
        rows = [found for seed in run.group.runs if (found := seed.rows(split))]
        if rows:
            return split, rows
    return run.group.split, []


def _splits(run: ReportedRun) -> Iterable[str]:
    """The split of the headline: in the folder its file may bear a longer name."""
    split = run.group.split if run.group else ""
    yield split
    folder = run.seeds[0].folder / "predictions"
    yield from sorted(path.stem for path in folder.glob(f"{split}*.jsonl") if path.stem != split)
