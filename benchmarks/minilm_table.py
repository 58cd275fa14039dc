"""The table of a published encoder's results, as configs/README.md has it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from finetune.runs.results import baselines

Results = Mapping[str, Any]
TITLES = (
    "task",
    "recipe",
    "metric",
    "score",
    "trivial",
    "training rows",
    "seeds",
    "minutes a seed",
    "examples/s",
    "peak GiB",
)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation (n - 1) in percent."""
    deviation = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{deviation}"


def rows(task: str, recipe: str, results: Sequence[Results]) -> list[list[str]]:
    """A row a metric; what is about the runs stands in the first."""
    first = results[0]
    train = next(part for part in first["data"].values() if isinstance(part, Mapping))
    about = [
        f"{train['examples']:,}",
        ", ".join(str(one["seed"]) for one in results),
        f"{statistics.fmean(one['train_seconds'] for one in results) / 60:.1f}",
        f"{statistics.fmean(one['examples_per_second'] for one in results):.1f}",
        f"{max(one['peak_gib'] for one in results):.2f}",
    ]
    made = []
    for number, metric in enumerate(first["metrics"]):
        baseline = baselines(first).get("trivial", {}).get(metric)
        cells = [metric.replace("_", " "), spread([one["metrics"][metric] for one in results])]
        cells.append("" if baseline is None else f"{100 * baseline:.1f}")
        made.append([task, recipe, *cells, *(about if number == 0 else [""] * len(about))])
    return made


def table(found: Sequence[tuple[str, str, Sequence[Results]]], *, header: bool = True) -> str:
    """Task, recipe and results in markdown."""
    lines = [f"| {' | '.join(TITLES)} |", "|---|---|---|" + "---:|" * (len(TITLES) - 3)]
    made = [row for one in found for row in rows(*one)]
    return "\n".join([*(lines if header else []), *(f"| {' | '.join(row)} |" for row in made)])
