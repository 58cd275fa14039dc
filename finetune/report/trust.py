"""How far the probabilities of runs can be trusted: reliability, coverage, calibration error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finetune.comparison import Answer
from finetune.comparison.answers import confidences
from finetune.metrics.calibration import calibration_error, coverage, reliability
from finetune.report.collecting import ReportedRun
from finetune.report.markup import Cell, Child, Column, Html, Row, data_table, element
from finetune.report.parts import figure
from finetune.report.view import TaskView

MOST_POINTS = 160
"""Of a curve: more than its pixels tell nothing."""
FEWEST = 0.02
"""Fraction of the answers from which on a curve of coverage begins: fewer tell nothing."""

Seeds = Sequence[Sequence[Answer]]


def trust(view: TaskView, answers: Mapping[str, Seeds]) -> Html | None:
    """Both plots and the table of a task; None where no run has probabilities.

    Args:
        view: The task.
        answers: By run, of each seed its rows.
    """
    sure = {run.name: confidences(answers[run.name]) for run in view.runs}
    known = [(run, one) for run in view.runs if (one := sure[run.name]) is not None]
    if not known:
        return None
    charts = [_chart(view, known, curve) for curve in (RELIABILITY, COVERAGE)]
    return element("div", element("div", *charts, class_="grid"), _table(view, known))


RELIABILITY = {
    "title": "Reliability",
    "x": "confidence",
    "y": "right",
    "diagonal": True,
    "note": "15 bins; a larger dot has more answers. On the line, probabilities are fractions of "
    "right answers; below it they are too high.",
}
COVERAGE = {
    "title": "Accuracy by coverage",
    "x": "answered",
    "y": "right",
    "diagonal": False,
    "note": "Right answers among the surest ones, by the fraction that is answered.",
}


def _chart(view: TaskView, known: Sequence[tuple[ReportedRun, Any]], about: Any) -> Html:
    series, ends = [], []
    for run, sides in known:
        points = _bins(*sides) if about["diagonal"] else _curve(*sides)
        look = {"colour": view.colour(run), "hollow": view.hollow(run)}
        series.append({"run": run.name, **look, "points": points})
        ends.append(f"{run.name} ends at {100 * points[-1][1]:.1f} percent right")
    words = f"{about['title']} of {view.task}: {', '.join(ends)}"
    spec = {key: about[key] for key in ("x", "y", "diagonal")} | {"series": series}
    return figure("trust", about["title"], words, spec, about["note"])


def _bins(confidence: Any, right: Any) -> list[list[float]]:
    return [
        [round(one.confidence, 4), round(one.accuracy, 4), one.answers]
        for one in reliability(confidence, right)
    ]


def _curve(confidence: Any, right: Any) -> list[list[float]]:
    """Points of the curve of coverage, evenly thinned, the last one among them."""
    covered, accuracy = coverage(confidence, right)
    points = np.flatnonzero(covered >= FEWEST)
    most = np.unique(np.linspace(0, len(points) - 1, MOST_POINTS).round().astype(int))
    return [
        [round(float(covered[n]), 4), round(float(accuracy[n]), 4), round(covered[n] * len(right))]
        for n in points[most]
    ]


def _table(view: TaskView, known: Sequence[tuple[ReportedRun, Any]]) -> Html:
    about = "fitted on the validation split"
    columns = [
        Column("Run"),
        Column("Temperature", number=True, about=about),
        Column("Calibration error, %", number=True, about="15 bins, of the answers in the run"),
        Column("before", number=True, about="at temperature 1"),
        Column("Negative log-likelihood", number=True, about="nats"),
        Column("before ", number=True, about="at temperature 1"),
    ]
    rows: list[Row] = [[run.name, *_figures(run, sides)] for run, sides in known]
    return data_table(f"Calibration of {view.task}, mean over seeds", columns, rows)


def _figures(run: ReportedRun, sides: Any) -> list[Cell | Child]:
    split = str(run.results.get("split"))
    before = run.mean("calibration", split, "ece", "before")
    error = run.mean("calibration", split, "ece", "after")
    if error is None:  # a run of passages, or of an earlier version
        error = calibration_error(*sides)
    return [
        _cell(run.mean("decision", "temperature"), "{:.2f}"),
        _cell(100 * error, "{:.2f}"),
        _cell(None if before is None else 100 * before, "{:.2f}"),
        _cell(run.mean("calibration", split, "nll", "after"), "{:.4f}"),
        _cell(run.mean("calibration", split, "nll", "before"), "{:.4f}"),
    ]


def _cell(value: float | None, form: str) -> Cell | None:
    return None if value is None else Cell(form.format(value), value)
