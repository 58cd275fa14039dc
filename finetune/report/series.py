"""Lines of metrics.jsonl as curves: one a run, its seeds as a band. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from finetune.report.collecting import ReportedRun, number

MOST_POINTS = 160
"""Of a curve: more than its pixels tell nothing."""
DIGITS = 4
"""Significant digits of a value in a curve."""


class Point(NamedTuple):
    """A value of a curve."""

    step: int
    """Optimizer steps behind."""
    epoch: float
    """Epochs behind."""
    mean: float
    """Mean over the seeds."""
    low: float
    """The lowest of them."""
    high: float
    """The highest."""


def logged(lines: Iterable[Mapping[str, Any]], name: str) -> list[tuple[float, float, float]]:
    """Step, epoch and value of each line that has a finite value of this name."""
    points = []
    for line in lines:
        step, value = number(line, "step"), number(line, name)
        if step is not None and value is not None:
            points.append((step, number(line, "epoch") or 0.0, value))
    return points


def band(seeds: Sequence[Sequence[tuple[float, float, float]]]) -> list[Point]:
    """Several seeds as one curve with a band.

    Seeds that logged at the same steps are put together step by step. Others (those that a clock
    stopped) are read off straight lines between their points, as far as all of them reach.

    Args:
        seeds: Of each seed its steps, epochs and values, by ascending step; empty ones are left
            out.

    Returns:
        Mean, lowest and highest value at each step.
    """
    curves = [np.asarray(seed, float) for seed in seeds if seed]
    if not curves:
        return []
    first = min(curves, key=len)
    begin, end = max(c[0, 0] for c in curves), min(c[-1, 0] for c in curves)
    grid = first[(first[:, 0] >= begin) & (first[:, 0] <= end)]
    values = np.stack([np.interp(grid[:, 0], c[:, 0], c[:, 2]) for c in curves])
    epochs = np.stack([np.interp(grid[:, 0], c[:, 0], c[:, 1]) for c in curves]).mean(axis=0)
    triples = zip(values.mean(axis=0), values.min(axis=0), values.max(axis=0), strict=True)
    return [
        Point(int(step), round(float(epoch), 4), *(_rounded(float(value)) for value in triple))
        for step, epoch, triple in zip(grid[:, 0], epochs, triples, strict=True)
    ]


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """At most so many of the points, evenly, the first and the last among them."""
    if len(points) <= most:
        return list(points)
    chosen = np.linspace(0, len(points) - 1, most).round().astype(int)
    return [points[index] for index in chosen]


def curve(run: ReportedRun, name: str) -> list[Point]:
    """A metric of a run over its training."""
    return thinned(band([logged(seed.lines, name) for seed in run.seeds]))


def names_of(run: ReportedRun, prefix: str) -> list[str]:
    """Names of what was logged that begin so, in the order of their first line."""
    seen = {name: None for seed in run.seeds for line in seed.lines for name in line}
    return [name for name in seen if name.startswith(prefix)]


def rates(run: ReportedRun) -> dict[str, list[Point]]:
    """Learning rates by layer groups; neighbours that always have the same are one curve.

    Returns:
        `embeddings..head` (or a single name) -> the first seed's rates, lowest group first.
    """
    together: list[tuple[list[str], list[Point]]] = []
    for name in names_of(run, "lr/"):
        points = band([logged(run.seeds[0].lines, name)])
        group = name.removeprefix("lr/")
        if together and together[-1][1] == points:
            together[-1][0].append(group)
        else:
            together.append(([group], points))
    return {named(groups): thinned(points) for groups, points in together}


def named(groups: Sequence[str]) -> str:
    """The first and the last of a row of layer groups."""
    return groups[0] if len(groups) == 1 else f"{groups[0]}..{groups[-1]}"


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
