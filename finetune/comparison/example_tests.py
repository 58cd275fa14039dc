"""The answers of two groups of runs, aligned by example and tested metric by metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from finetune.comparison.examples import (
    TOLERANCE,
    Bootstrap,
    Floats,
    McNemar,
    Rescored,
    Rows,
    Score,
    align,
    bootstrap_values,
    example_values,
    mcnemar,
)
from finetune.comparison.groups import Answer, Group, Run, split_of
from finetune.comparison.seeds import holm
from finetune.errors import DataError


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
            bootstrap = bootstrap_values(values, seed=self._seed, resamples=self._resamples)
            return Tested(bootstrap, self._mcnemar(values), ())
        if self._score is not None:
            if name not in self._score(rows[0][0]):
                return _untested(metric, "the function that scores them does not return it")
            self._check(rows, recorded, split, name, self._score)
            rescored = self._rescored.setdefault(split, Rescored(rows, self._score))
            return self._resample(metric, name, rescored)
        if name == "accuracy":
            raise self._stale(split, name)
        return _untested(metric, "it is not a mean over them, and no scoring function was given")

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
