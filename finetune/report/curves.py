"""Curves of training: what each task's runs logged, its phases of unfreezing, and pretraining."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from finetune.metrics.semantics import TOKEN_ACCURACIES, axis_title, label, meaning
from finetune.report.collecting import ReportedRun, nested, number
from finetune.report.inside.layers import layers_figure
from finetune.report.inside.layers import series as layers_series
from finetune.report.markup import Cell, Child, Column, Html, data_table, details, element, joined
from finetune.report.parts import figure, swatch
from finetune.report.series import Point, curve, named, names_of, rates
from finetune.report.view import TRAINING, TaskView
from finetune.runs.listing import UNEXPECTED
from finetune.runs.results import summarise

Series = dict[str, Any]
Row = Mapping[str, Any]
"""A row of a plan of unfreezing."""

MORE = {
    "val/perplexity": axis_title("val/perplexity"),
    "perf/tokens_per_second": "Tokens a second",
    "perf/examples_per_second": "Examples a second",
    "perf/padding": "Padding, fraction of tokens",
    "perf/ceiling_share": "Fraction of the matrix-product ceiling",
    "train/gradient_norm": "Gradient norm",
    "frozen/boundary": "Frozen layer groups",
}
"""Curves that are folded away at first."""
WORDS = "best elementary baseline"
"""A learning curve's line of what needs no net."""
KIND = (("head", "pooling"), ("unfreezing", "policy"))
"""Settings beside the encoder that make another line of a learning curve over examples."""


def curves(view: TaskView) -> Html | None:
    """All curves of a task under one legend: losses and metrics first, the rest folded."""
    first = [_chart(view, name, axis_title(name)) for name in _first(view)]
    first.append(_rates(view))
    shown = [chart for chart in first if chart is not None]
    if not shown:
        return None
    more = [chart for name, title in MORE.items() if (chart := _chart(view, name, title))]
    grid = element("div", *shown, class_="grid")
    rest = details(f"More curves ({len(more)})", element("div", *more, class_="grid"))
    return element(
        "div", _legend(view), grid, rest if more else None, class_="curves", data_group=view.key
    )


def by_examples(view: TaskView) -> Html | None:
    """The headline metric by the number of training examples, a line for each kind of run.

    None unless runs that differ in nothing else were trained on several numbers of examples.
    """
    metric = view.headline
    kinds = _by_kind(view, metric) if metric else {}
    if not metric or all(len(kinds[kind]) < 2 for kind in kinds if kind != WORDS):
        return None
    counts = sorted({count for points in kinds.values() for count in points})
    lines = [
        layers_series(
            kind, index, {f"{count:,}": summarise(points[count]) for count in sorted(points)}
        )
        for index, (kind, points) in enumerate(kinds.items())
    ]
    names = [f"{count:,}" for count in counts]
    title = f"{label(metric)} by training examples"
    percent = meaning(metric).percent
    note = "Mean over seeds with one standard deviation; each seed draws its own examples."
    return layers_figure("layers", title, names, lines, percent=percent, note=note)


def _by_kind(view: TaskView, metric: str) -> dict[str, dict[int, list[float]]]:
    """Kind of run -> number of training examples -> values of all seeds; words alone are last."""
    kinds: dict[str, dict[int, list[float]]] = {}
    words: dict[int, list[float]] = {}
    for run in view.runs:
        count = number(run.results, *TRAINING)
        if count is None or run.group is None or metric not in run.group.metrics:
            continue
        points = kinds.setdefault(_kind(view, run), {})
        points.setdefault(int(count), []).extend(run.group.values(metric))
        if best := run.elementary(metric):
            words.setdefault(int(count), []).append(best[1])
    return kinds | ({WORDS: words} if words else {})


def _kind(view: TaskView, run: ReportedRun) -> str:
    """Where a run started, and what else tells the runs of a task apart."""

    def said(of: ReportedRun) -> list[str]:
        return [str(nested(of.config, *path) or "") for path in KIND]

    start = "from scratch" if run.from_scratch else Path(str(run.config.get("encoder_from"))).name
    own = zip(said(run), zip(*map(said, view.runs), strict=True), strict=True)
    return ", ".join([start, *(word for word, every in own if word and len({*every}) > 1)])


def _first(view: TaskView) -> Iterator[str]:
    yield "train/loss"
    yield "val/loss"
    # A pretraining logs one of the two.
    for metric in TOKEN_ACCURACIES if view.models_language else (view.headline,):
        if metric and metric != "loss":
            yield f"val/{metric}"


def _legend(view: TaskView) -> Html:
    """The runs as buttons that hide and show their curves, and the scale below them."""
    buttons = [
        element(
            "button",
            swatch(view.colour(run), hollow=view.hollow(run)),
            run.name,
            type="button",
            class_="key",
            aria_pressed="true",
            data_run=run.name,
        )
        for run in view.runs
        if any(seed.lines for seed in run.seeds)
    ]
    scales = [
        element("button", scale, type="button", data_axis=scale, aria_pressed=pressed)
        for scale, pressed in (("step", "true"), ("epoch", "false"))
    ]
    reset = element("button", "Reset zoom", type="button", class_="reset", disabled=True)
    axis = element("span", "Over ", *scales, reset, class_="axis", role="group", aria_label="Axis")
    return element("div", *buttons, axis, class_="legend")


def _chart(view: TaskView, name: str, title: str) -> Html | None:
    series = [one for run in view.runs if (one := _series(view, run, curve(run, name)))]
    if not series:
        return None
    percent = name.startswith("val/") and meaning(name).percent
    rules = list(_entropy(view)) if name.endswith("/loss") else []
    spec = {"percent": percent, "series": series, "rules": rules, "phases": _phases(view)}
    return figure("lines", title, _words(title, series, percent), spec)


def _series(view: TaskView, run: ReportedRun, points: Sequence[Point], label: str = "") -> Series:
    if not points:
        return {}
    several = any(point.low != point.high for point in points)
    drawn = [list(point) if several else list(point[:3]) for point in points]
    look = {"colour": view.colour(run), "dashed": view.hollow(run)}
    return {"run": run.name, "label": label, **look, "points": drawn}


def _words(title: str, series: Sequence[Series], percent: bool) -> str:
    scale = 100 if percent else 1
    ends = ", ".join(
        " ".join(
            filter(None, [one["run"], one["label"], f"ends at {scale * one['points'][-1][2]:.4g}"])
        )
        for one in series
    )
    return f"{title} over training: {ends}"


def _rates(view: TaskView) -> Html | None:
    """Learning rates of the layer groups: the higher a group, the stronger its line."""
    series = []
    for run in view.runs:
        groups = rates(run)
        for number_of, (name, points) in enumerate(groups.items(), start=1):
            one = _series(view, run, points, name if len(groups) > 1 else "")
            if one:
                series.append(one | {"strength": round(number_of / len(groups), 2)})
    if not series:
        return None
    spec = {"percent": False, "series": series, "rules": [], "phases": _phases(view)}
    note = "By layer group; the paler, the nearer to the input." if _has_groups(series) else None
    return figure("lines", "Learning rate", _words("Learning rate", series, False), spec, note)


def _has_groups(series: Sequence[Series]) -> bool:
    return any(one["label"] for one in series)


def _entropy(view: TaskView) -> Iterator[dict[str, Any]]:
    """The unigram entropy of the corpus: what a model reaches that knows frequencies alone."""
    entropies = {number(run.results, "data", "unigram_entropy") for run in view.runs}
    for run in view.runs:
        if any("train/unigram_entropy" in names_of(run, "train/") for _ in run.seeds[:1]):
            entropies.add(number(run.seeds[0].lines[-1], "train/unigram_entropy"))
    for value in sorted({round(value, 3) for value in entropies if value is not None}):
        yield {"y": value, "label": f"unigram entropy {value:.2f}"}


def phases(run: ReportedRun) -> list[dict[str, Any]]:
    """The phases of a run's plan that have a known end, as stretches of the curves."""
    try:
        return _phases_of(run, run.results.get("plan") or [])
    except UNEXPECTED:  # the part about plans names it
        return []


def _phases_of(run: ReportedRun, plan: Sequence[Any]) -> list[dict[str, Any]]:
    last = max((number(line, "step") or 0 for seed in run.seeds for line in seed.lines), default=0)
    stretches = []
    for row in plan if len(plan) > 1 else []:
        (begin, end), (start, stop) = row["steps"], row["epochs"]
        stretches.append(
            {
                "steps": [begin, last if end is None else end],
                "epochs": [start, stop if stop is not None else start],
                "label": named(row["groups"]),
            }
        )
    return stretches


def _phases(view: TaskView) -> dict[str, list[dict[str, Any]]]:
    return {run.name: stretches for run in view.runs if (stretches := phases(run))}


def plans(views: Sequence[TaskView], attempt: Callable[..., Html | None]) -> Html | None:
    """The plan of unfreezing of each run that has one of several phases."""
    alike: dict[str, tuple[TaskView, list[ReportedRun]]] = {}
    for view in views:
        for run in view.runs:
            plan = run.results.get("plan")
            if isinstance(plan, list) and len(plan) > 1:
                alike.setdefault(f"{view.key} {plan}", (view, []))[1].append(run)
    parts = [attempt(runs[0].name, partial(_plan, view, runs)) for view, runs in alike.values()]
    shown = [part for part in parts if part is not None]
    return element("div", *shown, class_="grid") if shown else None


def _plan(view: TaskView, runs: Sequence[ReportedRun]) -> Html:
    plan = runs[0].results["plan"]
    names = [joined([swatch(view.colour(run), hollow=view.hollow(run)), run.name]) for run in runs]
    figure_of = plan_figure(plan, joined(names, " "), view.colour(runs[0]))
    return element("div", figure_of, plan_rates(plan))


def group_order(plan: Sequence[Row]) -> list[str]:
    """Every layer group of a plan of unfreezing, the head first."""
    seen = {name: None for row in plan for name in row["groups"]}

    def height(name: str) -> float:
        if name == "embeddings":
            return 0
        return int(name.rpartition("_")[2]) if name.rpartition("_")[2].isdecimal() else 1e9

    return sorted(seen, key=height, reverse=True)


def plan_figure(plan: Sequence[Row], title: Child, colour: str) -> Html:
    """The plan as a picture: filled where a group learns, the stronger the higher its rate."""
    cells = [
        {
            "group": name,
            "begin": row["epochs"][0],
            "end": row["epochs"][1],
            "phase": row["phase"],
            "peak": ((row["rates"] or {}).get(name) or {}).get("peak"),
        }
        for row in plan
        for name in row["groups"]
    ]
    words = "; ".join(
        f"phase {row['phase']}, epochs {row['epochs'][0]:g} to "
        f"{'the end' if row['epochs'][1] is None else format(row['epochs'][1], 'g')}: "
        f"{named(row['groups'])}"
        for row in plan
    )
    spec = {"groups": group_order(plan), "cells": cells, "colour": colour}
    return figure("phases", title, words, spec)


def plan_rates(plan: Sequence[Row]) -> Html:
    """Phases with their steps, groups, parameters and rates."""
    columns = [
        Column("Phase", number=True),
        Column("Epochs", number=True),
        Column("Steps", number=True),
        Column("Trainable"),
        Column("Parameters", number=True),
        Column("Peak rates", number=True),
    ]
    rows = [
        [
            Cell(row["phase"], row["phase"]),
            _stretch(*row["epochs"]),
            _stretch(*row["steps"]),
            named(row["groups"]),
            Cell(f"{row['parameters']:,}", row["parameters"]),
            _peaks(row),
        ]
        for row in plan
    ]
    return details("The plan as a table", data_table("Plan", columns, rows, hide_caption=True))


def _stretch(begin: float, end: float | None) -> str:
    return f"{begin:g} on" if end is None else f"{begin:g}–{end:g}"


def _peaks(row: Row) -> str | None:
    peaks = [points["peak"] for points in (row["rates"] or {}).values() if points]
    if not peaks:
        return None
    low, high = min(peaks), max(peaks)
    return f"{high:.2g}" if low == high else f"{low:.2g} to {high:.2g}"
