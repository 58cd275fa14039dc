"""The results of a run as a plain text table for the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from finetune.console.tables import table
from finetune.elementary import TRIVIAL
from finetune.machine.processes import is_first_process
from finetune.metrics.semantics import column_title, goodness, headline, label, shown
from finetune.runs.results import baselines, best_elementary

Results = dict[str, Any]
"""What results.json holds."""
WHEN = ("before", "after")
"""Figures of probabilities: before and after the temperature."""
MOST_CLASSES = 20
"""So many classes are shown one by one; results.json has them all."""


def show_results(
    results: Results, folder: Path, arguments: Sequence[str], *, trained: bool = True
) -> None:
    """Print a table on stderr for people, the metrics as one JSON line on stdout for programs.

    A terminal gets the line only with --json, which also asks for all results. So a line has where
    nothing was trained: there is no table.

    Args:
        results: Of the run.
        folder: RUN.
        arguments: The command's, of which one may be --json.
        trained: Whether a model was trained or scored.
    """
    if not is_first_process():
        return
    if trained:
        from finetune.runs.folder import say

        say(results_table(results))
        say(f"run folder: {folder}")
    wants_all = "--json" in arguments
    if wants_all or not sys.stdout.isatty():
        keys = list(results) if wants_all or not trained else ("task", "split", "metrics")
        print(json.dumps({key: results[key] for key in keys}))


def results_table(results: Results) -> str:
    """The metrics of a run, fractions in percent, beside those of the baselines.

    Args:
        results: Of one run (one column), or of several seeds (mean, deviation, one a seed).
    """
    name = f"{results['task']} ({results['split']})"
    if "ensemble" in results:
        rows, header = _of_ensemble(results)
        header.insert(0, name)
    elif "seeds" in results:
        rows = [
            _row(metric, [entry["mean"], entry["std"], *entry["values"]])
            for metric, entry in results["metrics"].items()
        ]
        header = [name, "mean", "std", *(f"seed {seed}" for seed in results["seeds"])]
    else:
        rows = [_row(metric, [value]) for metric, value in results["metrics"].items()]
        header = [name, f"seed {results['seed']}"]
        if "int8" in results:
            rows = [
                _row(metric, [value, results["int8"][metric]])
                for metric, value in results["metrics"].items()
            ]
            header.append("8 bits")
    for name, baseline in baselines(results).items():
        header.append("trivial baseline" if name == TRIVIAL else label(name))
        rows = [
            [*row, *_row(metric, [baseline[metric]])[1:]] if metric in baseline else [*row, ""]
            for row, metric in zip(rows, results["metrics"], strict=True)
        ]
    sections = [*_per_class(results), *_decided(results), *_degenerate(results)]
    sections += _below_baseline(results)
    parts = [table(rows, header), *sections]
    return "\n".join(parts)


def _of_ensemble(results: Results) -> tuple[list[list[str]], list[str]]:
    """The metrics of seeds that answer together, beside those of each and of their mean weights."""
    about = results["ensemble"]
    rows = []
    for metric, value in results["metrics"].items():
        each = about["each"][metric]
        columns = (value, about["average_weights"][metric], each["mean"], each["std"])
        rows.append(_row(metric, [*columns, *each["values"]]))
    seeds = [f"seed {seed}" for seed in about["seeds"]]
    return rows, ["ensemble", "average weights", "mean", "std", *seeds]


def _per_class(results: Results) -> list[str]:
    """Precision, recall and F1 of each class, where a single run reports them."""
    classes = results.get("report", {}).get("per_class", {})
    if not 0 < len(classes) <= MOST_CLASSES:
        return []
    scores = ("precision", "recall", "f1")
    rows = [
        [name, *(shown(score, row[score], short=True) for score in scores), f"{row['support']:,}"]
        for name, row in classes.items()
    ]
    return ["", table(rows, ["class (%)", *scores, "examples"])]


def _row(metric: str, values: Sequence[float]) -> list[str]:
    return [column_title(metric), *(shown(metric, value) for value in values)]


def _decided(results: Results) -> list[str]:
    """The numbers by which a single run decides its answers, and what they change."""
    numbers = dict(results.get("decision", {}))
    tuned_on = numbers.pop("tuned_on", "")
    thresholds = [numbers.pop(name) for name in list(numbers) if name.startswith("threshold/")]
    lines = [f"{name} = {value:.4g}, tuned on {tuned_on}" for name, value in numbers.items()]
    if thresholds:
        span = f"{min(thresholds):.3g} to {max(thresholds):.3g}"
        lines.append(f"thresholds of {len(thresholds)} classes: {span}, tuned on {tuned_on}")
    if fixed := results.get("fixed_thresholds"):
        figures = ", ".join(f"{label(name)} {shown(name, fixed[name])}" for name in fixed)
        lines.append(f"with thresholds of 0.5: {figures}")
    return [*lines, *_calibrated(results)]


def _calibrated(results: Results) -> list[str]:
    """What the temperature changed in the probabilities of each split."""
    return [
        f"calibration on {split}: "
        + ", ".join(
            f"{name} {' -> '.join(dict.fromkeys(shown(name, of[when]) for when in WHEN))}"
            for name, of in figures.items()
        )
        for split, figures in results.get("calibration", {}).items()
    ]


def _degenerate(results: Results) -> list[str]:
    if "ensemble" in results:
        return ["degenerate (one answer for every example)"] if results.get("collapsed") else []
    runs = results.get("runs", [results])
    seeds = [str(run["seed"]) for run in runs if run.get("collapsed")]
    return [f"degenerate (one answer for every example): seed {', '.join(seeds)}"] if seeds else []


def _below_baseline(results: Results) -> list[str]:
    """Warn of a run that an elementary baseline surpasses: its net was not worth its time."""
    metric = headline(results["metrics"])
    best = best_elementary(results, metric)
    if metric is None or best is None:
        return []
    name, bar = best
    value = results["metrics"][metric]
    value = value["mean"] if "seeds" in results else value
    if goodness(metric, value) >= goodness(metric, bar):
        return []
    figures = f"{shown(metric, value)} against {shown(metric, bar)}"
    return [f"warning: below the baseline {label(name)} in {label(metric)}: {figures}"]
