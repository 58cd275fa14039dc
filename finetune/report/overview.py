"""The first part of the page: what came out, for all tasks at once, and the comparisons."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from finetune.comparison import Comparison, Difference
from finetune.comparison.differences import Outcome
from finetune.comparison.verdict import interval_text, on_examples, p_text
from finetune.metrics.semantics import label, meaning
from finetune.report.collecting import ReportedRun
from finetune.report.markup import (
    Cell,
    Child,
    Column,
    Html,
    Row,
    data_table,
    details,
    element,
    joined,
)
from finetune.report.parts import figure, swatch
from finetune.report.view import TaskView, mean_and_deviation, shown

SUMMED = {
    "better": "better",
    "worse": "worse",
    "no difference shown": "without a difference that is shown",
    "better on these examples": "better on these examples (too few seeds to say more)",
    "worse on these examples": "worse on these examples (too few seeds to say more)",
    "no difference on these examples": "alike on these examples (too few seeds to say more)",
    "too few seeds": "with too few seeds to say",
}
DOTS = (
    "Large dot: mean over seeds; line: one standard deviation; small dots: each seed. Grey: the "
    "run to compare with. Vertical line: the trivial baseline, the same answer for every text; "
    "dashed: the best elementary baseline, such as a bag of words."
)
PUBLISHED = " Diamond: a published figure, of another model and often another split (table below)."
FEW = 4
"""So many comparisons are described at once."""
OUTCOMES: dict[Outcome, str] = {
    "better": "better",
    "worse": "worse",
    "undecided": "no difference shown",
    "not enough seeds": "too few seeds",
}


def _words(difference: Difference) -> str:
    """The verdict in a few words; where seeds are too few, what the examples say of these runs."""
    if difference.outcome != "not enough seeds" or difference.bootstrap is None:
        return OUTCOMES[difference.outcome]
    return f"{on_examples(difference) or 'no difference'} on these examples"


def run_name(view: TaskView, run: ReportedRun) -> Html:
    """A run's name with its colour; below it whether it is the baseline, or has not gone well."""
    words = ["baseline"] if run is view.baseline else []
    words += [run.state] if run.state != "done" else []
    below = element("span", ", ".join(words), class_=f"below {run.state}") if words else None
    return joined([swatch(view.colour(run), hollow=view.hollow(run)), run.name, below])


def headline_chart(views: Sequence[TaskView]) -> Html | None:
    """The headline metric of each task, runs as dots; metrics that are no shares are left out."""
    rows = [_dots(view) for view in views if view.headline and meaning(view.headline).percent]
    rows = [row for row in rows if row["runs"]]
    if not rows:
        return None
    words = "; ".join(_dots_in_words(row) for row in rows)
    return figure(
        "dots",
        "Headline metric of each task, percent",
        words,
        {"rows": rows},
        note=DOTS + (PUBLISHED if any(row["anchors"] for row in rows) else ""),
    )


def _dots(view: TaskView) -> dict[str, Any]:
    metric = str(view.headline)
    runs = [run for run in view.runs if run.group and metric in run.group.metrics]
    constant = (run.trivial(metric) for run in runs)
    return {
        "task": view.task,
        "metric": label(metric),
        "runs": [_dot(view, run, metric) for run in runs],
        "constant": next((value for value in constant if value is not None), None),
        "elementary": _elementary_line(runs, metric),
        "anchors": [
            {"model": anchor.model, "value": anchor.value, "split": anchor.split}
            for anchor in view.anchors
            if anchor.metric == metric
        ],
    }


def _elementary_line(runs: Sequence[ReportedRun], metric: str) -> dict[str, Any] | None:
    """The best elementary baseline of the first run that has one."""
    found = next((best for run in runs if (best := run.elementary(metric))), None)
    return None if found is None else {"name": label(found[0]), "value": found[1]}


def _dot(view: TaskView, run: ReportedRun, metric: str) -> dict[str, Any]:
    from finetune.comparison import spread

    of = spread(run.group.values(metric) if run.group else [0.0])
    return {
        "name": run.name,
        "colour": view.colour(run),
        "hollow": view.hollow(run),
        "mean": of.mean,
        "std": of.std,
        "values": list(of.values),
    }


def _dots_in_words(row: dict[str, Any]) -> str:
    runs = ", ".join(f"{run['name']} {100 * run['mean']:.1f}" for run in row["runs"])
    return f"{row['task']} ({row['metric']}): {runs}"


def overview_table(views: Sequence[TaskView]) -> Html:
    """A row a run, sortable."""
    columns = [
        Column("Run"),
        Column("Task and metric", about="The headline metric, on the validation split"),
        Column("Mean ± sd", number=True, about="Over seeds; fractions in percent"),
        Column("Seeds", number=True),
        Column("Against baseline", number=True, about="Difference with its 95 % interval"),
        Column("Trivial", number=True, about="Baseline: the same answer for every text"),
        Column("Elementary", number=True, about="The best baseline that reads words alone"),
        Column("Minutes", number=True, about="Training, mean over seeds"),
        Column("ex/s", number=True, about="Examples a second in training, mean over seeds"),
        Column("GiB", number=True, about="Peak memory, mean over seeds"),
    ]
    rows = [_overview_row(view, run) for view in views for run in view.runs]
    return data_table("All runs", columns, rows)


def _overview_row(view: TaskView, run: ReportedRun) -> list[Cell]:
    metric = view.headline or ""
    value = run.mean("metrics", metric)
    constant = run.trivial(metric)
    difference = view.difference(run)
    seconds, rate = run.mean("train_seconds"), run.mean("examples_per_second")
    gib = run.mean("peak_gib")
    return [
        Cell(run_name(view, run), run.name),
        Cell(joined([view.task, element("span", label(metric), class_="below")]), view.task),
        Cell(mean_and_deviation(metric, run), value),
        Cell(len(run.seeds), len(run.seeds)),
        Cell(*_difference(difference)),
        Cell(shown(metric, constant), constant),
        _elementary_cell(run, metric),
        Cell(None if seconds is None else f"{seconds / 60:.1f}", seconds),
        Cell(None if rate is None else f"{rate:,.0f}", rate),
        Cell(None if gib is None else f"{gib:.2f}", gib),
    ]


def _elementary_cell(run: ReportedRun, metric: str) -> Cell:
    best = run.elementary(metric)
    if best is None:
        return Cell(None, None)
    name, value = best
    below = element("span", label(name), class_="below")
    return Cell(joined([shown(metric, value), below]), value)


def _difference(difference: Difference | None) -> tuple[Child, float | None]:
    if difference is None:
        return None, None
    of = difference.seeds
    size = shown(difference.metric, of.difference, signed=True)
    ends = interval_text(difference.metric, of.interval) if of.interval else None
    parts = [
        element("strong", size, class_=f"outcome {_class(difference)}"),
        element("span", ends.replace("-", "−"), class_="below") if ends else None,
        element("span", _words(difference), class_=f"below outcome {_class(difference)}"),
    ]
    return joined(parts), of.difference


def _class(difference: Difference) -> str:
    return difference.outcome.replace(" ", "-")


def _outcome(difference: Difference | None) -> Html | None:
    if difference is None:
        return None
    return element("span", _words(difference), class_=f"outcome {_class(difference)}")


def summary(views: Sequence[TaskView]) -> Html:
    """How the runs stand against their baselines, in one sentence and a few figures."""
    differences = [view.difference(run) for view in views for run in view.runs]
    counts = Counter(_words(item) for item in differences if item)
    total = sum(counts.values())
    if not total:
        return element("p", "No run is set against a baseline.", class_="lead")
    said = [f"{counts[outcome]} {words}" for outcome, words in SUMMED.items() if counts[outcome]]
    runs = "1 run against its baseline" if total == 1 else f"{total} runs against their baselines"
    return element("p", f"{runs}: ", element("strong", ", ".join(said)), ".", class_="lead")


def anchor_table(views: Sequence[TaskView]) -> Html | None:
    """The published figures with their sources."""
    anchors = [(view.task, anchor) for view in views for anchor in view.anchors]
    if not anchors:
        return None
    columns = [
        Column("Task"),
        Column("Model"),
        Column("Metric"),
        Column("Value", number=True),
        Column("Split"),
        Column("Source"),
    ]
    rows: list[Row] = [
        [
            task,
            a.model,
            label(a.metric),
            Cell(shown(a.metric, a.value), a.value),
            a.split,
            a.source,
        ]
        for task, a in anchors
    ]
    table = data_table("Published figures", columns, rows, hide_caption=True)
    return details(f"Published figures and their sources ({len(rows)})", table)


def comparisons(views: Sequence[TaskView]) -> Html | None:
    """Every run against its task's baseline: intervals as a plot, and all tests as a table."""
    pairs = [(view, run) for view in views for run in view.runs if run.name in view.comparisons]
    if not pairs:
        return None
    rows = [row for view, run in pairs for row in _forest(view, run)]
    plot = None
    if rows:
        words = "; ".join(f"{row['label']}: {row['words']}" for row in rows)
        plot = figure(
            "forest",
            "Difference from the baseline with its 95 % interval over seeds, points",
            words,
            {"rows": rows},
            note="An interval that leaves out zero separates the two for these seeds.",
        )
    verdicts = element("ul", *(_verdict(view, run) for view, run in pairs), class_="verdicts")
    said = details(f"In words ({len(pairs)})", verdicts, open_=plot is None or len(pairs) <= FEW)
    return joined([plot, said, _tests(pairs)])


def _forest(view: TaskView, run: ReportedRun) -> Iterator[dict[str, Any]]:
    difference = view.difference(run)
    if difference is None or not meaning(difference.metric).percent:
        return
    of = difference.seeds
    low, high = of.interval or (of.difference, of.difference)
    words = f"{shown(difference.metric, of.difference, signed=True)} points"
    yield {
        "label": run.name,
        "value": 100 * of.difference,
        "low": 100 * low,
        "high": 100 * high,
        "outcome": difference.outcome,
        "colour": view.colour(run),
        "words": f"{words}, {_words(difference)}",
        "metric": label(difference.metric),
        "baseline": view.baseline.name if view.baseline else "",
    }


def _verdict(view: TaskView, run: ReportedRun) -> Html:
    difference = view.difference(run)
    if difference is None:
        return element("li", f"{run.name}: no metric that both have.")
    said = difference.verdict.replace(difference.metric, label(difference.metric))
    return element("li", re.sub(r"(?<![\w.])-(?=\d)", "−", said))


def _tests(pairs: Sequence[tuple[TaskView, ReportedRun]]) -> Html:
    columns = [
        Column("Run"),
        Column("Baseline"),
        Column("Metric"),
        Column("Run mean ± sd", number=True),
        Column("Baseline mean ± sd", number=True),
        Column("Difference", number=True),
        Column("95 % interval", number=True, about="Over seeds, by t"),
        Column(
            "p",
            number=True,
            about="t-test over seeds, Holm's correction over all runs and metrics of the task",
        ),
        Column("Examples: 95 %", number=True, about="Bootstrap over examples"),
        Column("Verdict"),
    ]
    rows = [
        _test_row(view, run, view.comparisons[run.name], difference)
        for view, run in pairs
        for difference in view.comparisons[run.name].differences
    ]
    table = data_table("All metrics and tests", columns, rows)
    return details(f"All metrics and tests ({len(rows)})", table)


def _test_row(
    view: TaskView, run: ReportedRun, comparison: Comparison, difference: Difference
) -> list[Cell | Child]:
    metric, of, bootstrap = difference.metric, difference.seeds, difference.bootstrap
    p = difference.adjusted_p
    return [
        run.name,
        view.baseline.name if view.baseline else None,
        label(metric),
        Cell(mean_and_deviation(metric, run), difference.a.mean),
        Cell(mean_and_deviation(metric, view.baseline or run), difference.b.mean),
        Cell(shown(metric, of.difference, signed=True), of.difference),
        interval_text(metric, of.interval).replace("-", "−") if of.interval else None,
        Cell(None if p is None else p_text(p), p),
        interval_text(metric, bootstrap.interval).replace("-", "−") if bootstrap else None,
        _outcome(difference),
    ]
