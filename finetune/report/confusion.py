"""Confusion matrices over all seeds of a run, with precision, recall and F1 of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from finetune.comparison import Answer
from finetune.report.answers import form_of
from finetune.report.markup import Cell, Column, Html, Row, data_table, element

MOST_CLASSES = 20
"""More make no table that one can read."""


class Confusion(NamedTuple):
    """Counts over all seeds."""

    classes: list[str]
    """In the order of the head's outputs."""
    counts: list[list[int]]
    """A row a right class, a column an answered one."""
    seeds: int
    """How many."""


def confusion(seeds: Sequence[Sequence[Answer]]) -> Confusion | None:
    """Count right and answered classes; None where answers are no classes, or too many ones."""
    rows = [row for answers in seeds for row in answers if "label" in row]
    if not rows or any(form_of(row) != "classes" for row in rows):
        return None
    seen = dict.fromkeys([*(rows[0].get("probabilities") or ()), *(row["label"] for row in rows)])
    classes = [name for name in seen if isinstance(name, str)]
    if not 2 <= len(classes) <= MOST_CLASSES:
        return None
    place = {name: index for index, name in enumerate(classes)}
    counts = [[0] * len(classes) for _ in classes]
    for row in rows:
        counts[place[row["label"]]][place[row["prediction"]]] += 1
    return Confusion(classes, counts, len(seeds))


class ClassScores(NamedTuple):
    """Of one class, fractions; 0 where nothing was answered or is right."""

    precision: float
    recall: float
    f1: float
    support: int
    """Examples of the class, over all seeds."""


def class_scores(matrix: Confusion) -> list[ClassScores]:
    """Scores of each class, in their order."""
    scores = []
    for index, row in enumerate(matrix.counts):
        hits, support = row[index], sum(row)
        said = sum(line[index] for line in matrix.counts)
        total = support + said
        scores.append(
            ClassScores(
                hits / said if said else 0.0,
                hits / support if support else 0.0,
                2 * hits / total if total else 0.0,
                support,
            )
        )
    return scores


def matrix_table(matrix: Confusion, name: str) -> Html:
    """The matrix as a table: rows are right, columns answered; the darker, the larger its share."""
    seeds = f", {matrix.seeds} seeds together" if matrix.seeds > 1 else ""
    corner = element("td", element("span", "right ↓ answered →"), class_="corner")
    heads = [element("th", label, scope="col") for label in matrix.classes]
    lines = []
    for index, (label, row) in enumerate(zip(matrix.classes, matrix.counts, strict=True)):
        cells = [_count(count, sum(row), index == n) for n, count in enumerate(row)]
        lines.append(element("tr", element("th", label, scope="row"), *cells))
    table = element(
        "table",
        element("caption", f"{name}{seeds}"),
        element("thead", element("tr", corner, *heads)),
        element("tbody", *lines),
        class_="matrix",
    )
    label = f"Confusion matrix of {name}"
    return element("div", table, class_="scroll", tabindex=0, role="region", aria_label=label)


def _count(count: int, total: int, right: bool) -> Html:
    share = count / total if total else 0.0
    kind = "right" if right else "wrong"
    parts = [f"{count:,}", element("small", f"{100 * share:.0f} %")]
    return element("td", *parts, class_=kind, style=f"--share:{share:.3f}")


def scores_table(matrix: Confusion) -> Html:
    """Precision, recall and F1 of each class in percent."""
    columns = [
        Column("Class"),
        Column("Precision", number=True),
        Column("Recall", number=True),
        Column("F1", number=True),
        Column("Examples", number=True),
    ]
    rows: list[Row] = [
        [
            label,
            *(Cell(f"{100 * share:.1f}", share) for share in scores[:3]),
            Cell(f"{scores.support // matrix.seeds:,}", scores.support),
        ]
        for label, scores in zip(matrix.classes, class_scores(matrix), strict=True)
    ]
    return data_table("Scores of each class, percent", columns, rows)
