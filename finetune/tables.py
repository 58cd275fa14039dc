"""Plain text tables for the terminal: any, and the results of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Results = dict[str, Any]
"""What results.json holds."""

NO_SHARES = ("loss", "perplexity", "threshold")
"""Last words of metrics that are no fractions of one; the others are shown in percent."""


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Lay out a table in plain text: the first column to the left, numbers to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        text.append("  ".join([line[0].ljust(widths[0]), *cells]).rstrip())
    text.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(text)


def results_table(results: Results) -> str:
    """The metrics of a run, shares in percent, beside those of the majority answer.

    Args:
        results: Of one run (one column), or of several seeds (mean, deviation, one a seed).
    """
    name = f"{results['task']} ({results['split']})"
    if "seeds" in results:
        rows = [
            _row(metric, [entry["mean"], entry["std"], *entry["values"]])
            for metric, entry in results["metrics"].items()
        ]
        header = [name, "mean", "std", *(f"seed {seed}" for seed in results["seeds"])]
    else:
        rows = [_row(metric, [value]) for metric, value in results["metrics"].items()]
        header = [name, f"seed {results['seed']}"]
    baseline = results.get("runs", [results])[0].get("majority")
    if baseline:
        header.append("majority")
        rows = [
            [*row, *_row(metric, [baseline[metric]])[1:]] if metric in baseline else [*row, ""]
            for row, metric in zip(rows, results["metrics"], strict=True)
        ]
    told = [*_per_class(results), *_decided(results), *_collapsed(results)]
    parts = [table(rows, header), *told]
    return "\n".join(parts)


MOST_CLASSES = 20
"""So many classes are shown one by one; results.json has them all."""


def _per_class(results: Results) -> list[str]:
    """Precision, recall and F1 of each class, where a single run reports them."""
    classes = results.get("report", {}).get("per_class", {})
    if not 0 < len(classes) <= MOST_CLASSES:
        return []
    shares = ("precision", "recall", "f1")
    rows = [
        [name, *(f"{100 * row[share]:.1f}" for share in shares), f"{row['support']:,}"]
        for name, row in classes.items()
    ]
    return ["", table(rows, ["class (%)", *shares, "examples"])]


def _row(metric: str, values: Sequence[float]) -> list[str]:
    if metric.endswith(NO_SHARES):
        return [metric, *(f"{value:.4f}" for value in values)]
    return [f"{metric} (%)", *(f"{100 * value:.2f}" for value in values)]


def _decided(results: Results) -> list[str]:
    """The numbers by which a single run decides its answers."""
    numbers = dict(results.get("decision", {}))
    tuned_on = numbers.pop("tuned_on", "")
    return [f"{name} = {value:.4g}, tuned on {tuned_on}" for name, value in numbers.items()]


def _collapsed(results: Results) -> list[str]:
    runs = results.get("runs", [results])
    seeds = [str(run["seed"]) for run in runs if run.get("collapsed")]
    return [f"collapsed (one answer for every example): seed {', '.join(seeds)}"] if seeds else []
