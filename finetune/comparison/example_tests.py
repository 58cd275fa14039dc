"""The answers of two groups of runs, aligned by example and tested metric by metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from finetune.comparison.examples import (
    RESAMPLES,
    TOLERANCE,
    Bootstrap,
    Floats,
    McNemar,
    Rescored,
    Rows,
    Score,
    align,
    bootstrap_values,
    bootstraps,
    example_values,
    mcnemar,
    one_by_one,
)
from finetune.comparison.groups import Answer, Group, Run, split_of
from finetune.comparison.seeds import holm
from finetune.comparison.weighted import WeightedScores
from finetune.errors import DataError

FEWEST_EXAMPLES = 2
"""For a bootstrap: resamples of one example are all the same."""
TOO_FEW = "at least two are needed"


class Tested(NamedTuple):
    """Tests over the examples of one metric."""

    bootstrap: Bootstrap | None
    """None where it cannot be tested."""
    mcnemar: tuple[McNemar, ...]
    """One for each pair of runs; empty where the metric does not count right answers, or seeds
    differ."""
    notes: tuple[str, ...]
    """What could not be tested, and why."""


class ExampleTests:
    """Tests over the examples of two groups; scores are computed once for all metrics."""

    def __init__(
        self, a: Group, b: Group, score: Score | None, *, resamples: int, seed: int
    ) -> None:
        """Set whose answers are tested, and how they are resampled.

        Args:
            a: The first group.
            b: The second.
            score: Scores rows; None tests fractions of right answers only.
            resamples: Number of resamples of the bootstrap.
            seed: Seed of the bootstrap.
        """
        self._groups, self._score = (a, b), score
        self._resamples, self._seed = resamples, seed
        self._rows: dict[str, list[list[Sequence[Answer]]]] = {}
        self._rescored: dict[str, Rescored] = {}
        self._weighted: dict[str, WeightedScores] = {}

    def of(self, metric: str) -> Tested:
        """Test a metric.

        Raises:
            DataError: The answers are damaged, to different examples, or not those of
                results.json.
        """
        split, name = split_of(metric, self._groups[0].split)
        rows = self._read(split)
        for group, side in zip(self._groups, rows, strict=True):
            if not all(side):
                return _untested(metric, f"{group.name} has no answers on {split}")
        recorded = [group.values(metric) for group in self._groups]
        values = example_values(rows, recorded, name, self._score)
        if values is not None:
            return self._of_means(metric, values)
        if len(rows[0][0]) < FEWEST_EXAMPLES:
            return _untested(metric, TOO_FEW)
        if self._score is not None:
            if name not in self._score(rows[0][0]):
                return _untested(metric, "the function that scores them does not return it")
            self._check(rows, recorded, split, name, self._score)
            if (weighted := self._from_weights(split, name, rows, self._score)) is not None:
                return Tested(weighted, (), ())
            rescored = self._rescored.setdefault(split, Rescored(rows, self._score))
            return self._resample(metric, name, rescored)
        if name == "accuracy":
            raise self._stale(split, name)
        return _untested(metric, "it is not a mean over them, and no scoring function was given")

    def _of_means(self, metric: str, values: Sequence[Floats]) -> Tested:
        """Tests of a metric that is a mean over examples."""
        mcnemar = self._mcnemar(values)
        if np.count_nonzero(~np.isnan(values[0][0])) < FEWEST_EXAMPLES:
            return Tested(None, mcnemar, _untested(metric, TOO_FEW).notes)
        bootstrap = bootstrap_values(values, seed=self._seed, resamples=self._resamples)
        return Tested(bootstrap, mcnemar, ())

    def _read(self, split: str) -> list[list[Sequence[Answer]]]:
        """The answers of each seed of each group, all in the order of the first run's."""
        if split not in self._rows:
            self._rows[split] = [
                [self._aligned(run, split, group) for run in group.runs] for group in self._groups
            ]
        return self._rows[split]

    def _aligned(self, run: Run, split: str, group: Group) -> Sequence[Answer]:
        reference = self._groups[0]
        rows, first = run.rows(split), reference.runs[0].rows(split)
        if not rows or not first:
            return []
        where = f"{split} of {group.name}, seed {run.seed}, and of {reference.name}"
        return align(rows, first, where)

    def _mcnemar(self, values: Sequence[Floats]) -> tuple[McNemar, ...]:
        """One test for each pair of runs with the same seed, or for the only two runs."""
        a, b = (group.seeds for group in self._groups)
        counts_right = all(np.isin(group[~np.isnan(group)], (0, 1)).all() for group in values)
        if not counts_right or not (a == b or len(a) == len(b) == 1):
            return ()
        tests = [mcnemar(*pair) for pair in zip(values[0] == 1, values[1] == 1, strict=True)]
        adjusted = holm([p for _, _, p in tests])
        seeds = zip(a, b, strict=True)
        names = [str(first) if first == second else f"{first}/{second}" for first, second in seeds]
        return tuple(
            McNemar(name, *test, p) for name, test, p in zip(names, tests, adjusted, strict=True)
        )

    def _from_weights(
        self, split: str, name: str, rows: Sequence[Rows], score: Score
    ) -> Bootstrap | None:
        if split not in self._weighted:
            self._weighted[split] = WeightedScores(rows, score)
        return self._weighted[split].bootstrap(name, seed=self._seed, resamples=self._resamples)

    def _resample(self, metric: str, name: str, rescored: Rescored) -> Tested:
        drawn = rescored.affordable(self._resamples)
        if not drawn:
            return _untested(metric, "it is not a mean over them, and scoring resamples is slow")
        bootstrap = rescored.bootstrap(name, seed=self._seed, resamples=drawn)
        note = f"the bootstrap of {metric} drew only {drawn:,} resamples, as scoring is slow"
        return Tested(bootstrap, (), (note,) if drawn < self._resamples else ())

    def _check(
        self,
        rows: Sequence[Rows],
        recorded: Sequence[Sequence[float]],
        split: str,
        name: str,
        score: Score,
    ) -> None:
        for group, values in zip(rows, recorded, strict=True):
            for part, value in zip(group, values, strict=True):
                scored = score(part).get(name)
                if scored is None or abs(scored - value) > TOLERANCE:
                    raise self._stale(split, name)

    def _stale(self, split: str, name: str) -> DataError:
        a, b = self._groups
        return DataError(
            f"{a.name} or {b.name}: expected the {name} of results.json in "
            f"predictions/{split}.jsonl, got another; run `finetune evaluate` on both"
        )


def _untested(metric: str, why: str) -> Tested:
    return Tested(None, (), (f"no test of {metric} over examples: {why}",))


def unpaired_bootstrap(
    groups: tuple[Rows, Rows],
    recorded: tuple[Sequence[float], Sequence[float]],
    metric: str,
    score: Score,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Bootstrap | None:
    """The difference of a metric between two sets of examples, each resampled by itself.

    Args:
        groups: For each of the two sets, the rows of each seed.
        recorded: For each, the metric of each seed as its results have it.
        metric: Its name for `score`.
        score: Scores rows.
        seed: Seed of the resamples.
        resamples: How many, or fewer where scoring them would take more than minutes.

    Returns:
        Interval and p; None where a set has fewer than two examples, or not even 1,000 resamples
        can be scored.
    """
    if min(len(rows[0]) for rows in groups) < FEWEST_EXAMPLES:
        return None
    values = [
        example_values([rows], [scores], metric, score)
        for rows, scores in zip(groups, recorded, strict=True)
    ]
    if all(value is not None for value in values):
        means = [value[0].mean(axis=0) for value in values if value is not None]
        data = [mean[~np.isnan(mean)] for mean in means]
        if min(map(len, data)) < FEWEST_EXAMPLES:
            return None
        return bootstraps(data, _mean_difference, seed=seed, resamples=resamples)[0]
    weighted = WeightedScores(groups, score)
    found = weighted.bootstrap(metric, seed=seed, resamples=resamples, paired=False)
    if found is not None:
        return found
    first, second = (Rescored([rows], score) for rows in groups)
    resamples = min(side.affordable(resamples) for side in (first, second))

    def difference(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> float:
        return first.means(metric, a)[0] - second.means(metric, b)[0]

    numbers = [np.arange(len(rows[0])) for rows in groups]
    if not resamples:
        return None
    return bootstraps(numbers, one_by_one(difference), seed=seed, resamples=resamples)[0]


def _mean_difference(first: Floats, second: Floats, axis: int) -> Any:
    return first.mean(axis=axis) - second.mean(axis=axis)
