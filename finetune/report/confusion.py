"""Answers against the gold: confusion matrices with scores of each class, scatters of numbers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from finetune.comparison import Answer
from finetune.comparison.answers import Confusion, class_scores, form_of
from finetune.report.answers import judged
from finetune.report.markup import Cell, Column, Html, Row, data_table, element
from finetune.report.parts import figure

MOST_POINTS = 2000
"""Examples in a scatter; of more, evenly many are left out."""


def matrix_table(matrix: Confusion, name: str) -> Html:
    """The matrix as a table: rows are right, columns answered; the darker, the more of its row."""
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
    fraction = count / total if total else 0.0
    kind = "right" if right else "wrong"
    parts = [f"{count:,}", element("small", f"{100 * fraction:.0f} %")]
    return element("td", *parts, class_=kind, style=f"--share:{fraction:.3f}")


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
            *(Cell(f"{100 * score:.1f}", score) for score in scores[:3]),
            Cell(f"{scores.support // matrix.seeds:,}", scores.support),
        ]
        for label, scores in zip(matrix.classes, class_scores(matrix), strict=True)
    ]
    return data_table("Scores of each class, percent", columns, rows)


def scatter(seeds: Sequence[Sequence[Answer]], run: str, colour: str) -> Html | None:
    """Predicted numbers against the gold ones, means over seeds; None for other answers.

    Args:
        seeds: Of each seed its rows.
        run: The run's name.
        colour: Its colour in the page.
    """
    examples = judged(seeds)
    if not examples or any(form_of(one.first) != "number" for one in examples):
        return None
    shown = examples[:: -(-len(examples) // MOST_POINTS)]
    points = [
        {
            "id": str(one.id),
            "gold": float(one.label),
            "predicted": statistics.fmean(float(row["prediction"]) for row in one.rows),
        }
        for one in shown
    ]
    error = statistics.fmean(one.wrong for one in examples)  # the distance from the gold
    words = f"{len(examples):,} examples, mean absolute error {error:.3g}"
    of_all = "" if len(shown) == len(examples) else f"; {len(shown):,} of {len(examples):,} shown"
    note = f"A point an example{of_all}. On the line predictions are right."
    return figure("scatter", run, words, {"points": points, "colour": colour}, note)
