"""Answers of all seeds of a run, example by example: what was said, how sure, and how wrong.

Which form a row of a predictions file has, its fields say; no task is known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.comparison import Answer
from finetune.comparison.answers import wrongness
from finetune.report.collecting import ReportedRun, mean


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


def judged(seeds: Sequence[Sequence[Answer]]) -> list[Judged]:
    """Every labelled example that all seeds answered, in the order of the file.

    Args:
        seeds: Of each seed its rows.
    """
    by_id = [{row["id"]: row for row in rows} for rows in seeds]
    examples = []
    for row in seeds[0] if seeds else ():
        rows = tuple(answers[row["id"]] for answers in by_id if row["id"] in answers)
        if len(rows) == len(seeds) and ("label" in row or "answers" in row):
            examples.append(Judged(row["id"], rows, mean(map(wrongness, rows)) or 0.0))
    return examples


def answers_of(run: ReportedRun) -> tuple[str, list[list[Answer]]]:
    """The scored split of a run and the rows of each seed that has some.

    Raises:
        DataError: A line of a file is no answer.
    """
    if run.group is None:
        return "", []
    for split in _splits(run):
        rows = [examples for seed in run.group.runs if (examples := seed.rows(split))]
        if rows:
            return split, rows
    return run.group.split, []


def _splits(run: ReportedRun) -> Iterable[str]:
    """The split of the headline: in the folder its file may bear a longer name."""
    split = run.group.split if run.group else ""
    yield split
    names = [path.stem for path in run.seeds[0].folder.predictions_files(split)]
    yield from (name for name in names if name != split)
