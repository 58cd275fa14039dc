"""Bootstraps of metrics that are computed from how often each example was drawn, not from rows.

The resamples are those that scoring row by row draws with the same seed, so the numbers are the
same to 1e-9; ten thousand take a second where scoring them takes minutes. Whether a metric of a
task is the one that is known here by its name is tried, not assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.comparison.answers import form_of
from finetune.comparison.examples import Bootstrap, Floats, Rows, Score, bootstraps
from finetune.comparison.groups import Answer
from finetune.metrics.classes import indicators
from finetune.metrics.weighted import area_metrics, class_metrics, number_metrics

TRIED = 8
"""Resamples on which a metric must equal the task's own, besides all examples."""
_EQUAL = 1e-9
_AT_ONCE = 2**17
"""Weights in memory at a time: 1 MiB."""
_Indices = npt.NDArray[np.int64]
_Metrics = Callable[[Floats], Mapping[str, Floats]]
"""Weights (R, N) -> metrics that are computed together, each (R, V) where it has V variants."""


class WeightedScores:
    """The metrics of two groups of runs that are known for every resample at once."""

    def __init__(self, groups: Sequence[Rows], score: Score) -> None:
        """Try which metrics these are.

        Args:
            groups: For each of the two groups, the N rows of each seed; N may differ by group.
            score: Scores rows, as the task does.
        """
        self._groups, self._score = groups, score
        known = [[metrics_of(rows) for rows in group] for group in groups]
        self._variants = self._equal_ones(known)
        """Metric -> which of its variants is the task's."""
        self._metrics = [
            [self._needed(of_run, len(rows)) for of_run, rows in zip(*both, strict=True)]
            for both in zip(known, groups, strict=True)
        ]
        self._made: dict[tuple[int, int], dict[str, Bootstrap]] = {}

    def bootstrap(
        self, metric: str, *, seed: int, resamples: int, paired: bool = True
    ) -> Bootstrap | None:
        """The bootstrap of a metric's difference; None where the metric is not known.

        Args:
            metric: Its name for the score function.
            seed: Seed of the resamples.
            resamples: How many.
            paired: Whether both groups answer the same examples; otherwise each is resampled by
                itself.
        """
        if metric not in self._variants:
            return None
        key = seed, resamples
        if key not in self._made:  # of all metrics: drawing takes longer than computing
            sizes = [len(group[0]) for group in self._groups]
            numbers = [np.arange(size) for size in (sizes[:1] if paired else sizes)]
            results = bootstraps(numbers, self._differences, seed=seed, resamples=resamples)
            self._made[key] = dict(zip(self._variants, results, strict=True))
        return self._made[key][metric]

    def _differences(self, *chosen: _Indices, axis: int = -1) -> Floats:
        """First less second, a row for each metric (M, R); in parts that a processor caches."""
        size = max(1, _AT_ONCE // max(one.shape[1] for one in chosen))
        parts = range(0, len(chosen[0]), size)
        made = [self._part(*(one[start : start + size] for one in chosen)) for start in parts]
        return np.concatenate(made, axis=1)

    def _part(self, *chosen: _Indices) -> Floats:
        weights = [_weights(one) for one in chosen]  # one where both answer the same examples
        pairs = zip(self._metrics, (weights[0], weights[-1]), strict=True)
        first, second = (self._means(group, drawn) for group, drawn in pairs)
        return np.array([first[name] - second[name] for name in self._variants])

    def _means(self, metrics: Sequence[Sequence[_Metrics]], weights: Floats) -> dict[str, Floats]:
        """Each metric of one group, the mean over its seeds (R,)."""
        seeds = [_all(of_run, weights) for of_run in metrics]
        return {
            name: np.sum([seed[name][:, variant] for seed in seeds], axis=0) / len(seeds)
            for name, variant in self._variants.items()
        }

    def _equal_ones(self, metrics: Sequence[Sequence[Sequence[_Metrics]]]) -> dict[str, int]:
        if not all(of_run for of_group in metrics for of_run in of_group):
            return {}
        runs = zip(chain(*self._groups), chain(*metrics), strict=True)
        equal = [_compare(rows, of_run, self._score) for rows, of_run in runs]
        # Answers of one side may have no probabilities, or name fewer classes.
        known = {
            name: np.all([one[name] for one in equal], axis=0)
            for name, variants in equal[0].items()
            if all(name in one and one[name].shape == variants.shape for one in equal)
        }
        return {name: int(variants.argmax()) for name, variants in known.items() if variants.any()}

    def _needed(self, of_run: Sequence[_Metrics], count: int) -> list[_Metrics]:
        """Without what only gives metrics that the task has not: ranks take most of the time."""
        once = np.ones((1, count))
        return [metrics for metrics in of_run if self._variants.keys() & metrics(once).keys()]


def _all(of_run: Sequence[_Metrics], weights: Floats) -> dict[str, Floats]:
    return {name: values for metrics in of_run for name, values in metrics(weights).items()}


def _compare(rows: Sequence[Answer], of_run: Sequence[_Metrics], score: Score) -> dict[str, Any]:
    """Which variants of each metric equal the task's, on all rows and on some resamples, (V,)."""
    drawn = np.random.default_rng(0).integers(0, len(rows), (TRIED, len(rows)))
    chosen = np.concatenate([np.arange(len(rows))[None], _without_rarest(rows), drawn])
    scores = [score([rows[number] for number in line]) for line in chosen.tolist()]
    return {
        name: (np.abs(values - [[one.get(name, 0.0)] for one in scores]) < _EQUAL).all(axis=0)
        for name, values in _all(of_run, _weights(chosen)).items()
        if name in scores[0]
    }


def _without_rarest(rows: Sequence[Answer]) -> _Indices:
    """A resample that lacks the rarest class, (1, N): few draws do, and variants differ in those.

    (0, N) where no row is without it.
    """
    named = [
        {str(name) for key in _SIDES for name in np.atleast_1d(row[key]).tolist()} for row in rows
    ]
    counts = Counter(name for names in named for name in names)
    rarest = min(counts, key=lambda name: counts[name], default="")
    others = [number for number, names in enumerate(named) if rarest not in names]
    return np.resize(np.array(others, dtype=np.int64), (min(1, len(others)), len(rows)))


def _weights(chosen: _Indices) -> Floats:
    """How often each example is among those of a resample, (R, N)."""
    resamples, count = chosen.shape
    places = chosen + count * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=chosen.size).reshape(chosen.shape).astype(float)


def metrics_of(rows: Sequence[Answer]) -> list[_Metrics]:
    """What computes the metrics of labelled answers from weights; nothing for other forms."""
    forms = {form_of(row) for row in rows} if all("label" in row for row in rows) else set()
    if forms == {"number"}:
        predicted, true = (np.array([float(row[key]) for row in rows]) for key in _SIDES)
        return [lambda weights: number_metrics(weights, predicted, true)]
    if forms not in ({"classes"}, {"sets of classes"}):
        return []
    sets = [
        [row[key] if isinstance(row[key], list) else [row[key]] for row in rows] for key in _SIDES
    ]
    given = [row.get("probabilities") or {} for row in rows]
    names = sorted({name for side in (*sets, given) for names in side for name in names})
    said, holds = (indicators(side, names) for side in sets)
    scores = np.array([[row.get(name, np.nan) for name in names] for row in given], dtype=float)
    found: list[_Metrics] = [lambda weights: class_metrics(weights, said, holds)]
    if not np.isnan(scores).any():
        found.append(lambda weights: area_metrics(weights, scores, holds))
    return found


_SIDES = ("prediction", "label")
