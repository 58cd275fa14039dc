"""Tests over examples: paired bootstrap of a metric's difference, and McNemar's test.

Both sides answer the same examples. The question is whether the order of these trained models
would hold on other examples of the kind, not whether it would hold for other seeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from finetune.comparison.groups import Answer
from finetune.comparison.seeds import CONFIDENCE
from finetune.errors import DataError

RESAMPLES = 10_000
"""With these a p of 0.05 has a standard error of 0.003 from the drawing alone."""
FEWEST_RESAMPLES = 1_000
"""With these the same error is 0.01; with fewer, no test is better than such a test."""
MOST_SCORED_BYTES = 6_000_000_000
"""Rows, as JSON and 100 bytes more each, that a bootstrap with a score function may score: half a
minute to a minute. A limit by size and not by the clock gives the same answer everywhere."""
_BATCH_ELEMENTS = 2**22
"""Indices of resamples in memory at a time: 32 MiB as int64."""
TOLERANCE = 1e-4
"""Between a metric in results.json and that of the answers, which are stored with six decimals."""

Score = Callable[[Sequence[Answer]], Mapping[str, float]]
Floats = npt.NDArray[np.float64]
Rows = Sequence[Sequence[Answer]]


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The difference of a metric over resampled examples, first less second."""

    interval: tuple[float, float]
    """95 %, by percentiles."""
    p: float
    """Two-sided: twice the fraction of resamples on the rarer side of 0."""
    resamples: int
    """How many were drawn."""
    examples: int
    """Examples for which the metric is defined."""


@dataclass(frozen=True, slots=True)
class McNemar:
    """The examples on which exactly one of two runs is right."""

    seed: str
    """Seed of both runs: `3`, or `1/2` where they differ."""
    only_a: int
    """Right in the first run alone."""
    only_b: int
    """Right in the second alone."""
    p: float
    """Two-sided, exact."""
    adjusted_p: float
    """p after Holm's correction for several seeds."""


def mcnemar(a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[int, int, float]:
    """McNemar's test in its exact form: a sign test of the examples that distinguish the runs.

    Args:
        a: Whether the first run is right, bool (N,).
        b: Whether the second is, bool (N,).

    Returns:
        How many the first alone has right, how many the second alone, and p (1 where both are 0).
    """
    from scipy import stats

    first, second = np.asarray(a, bool), np.asarray(b, bool)
    only_a, only_b = int((first & ~second).sum()), int((second & ~first).sum())
    if not only_a + only_b:
        return 0, 0, 1.0
    return only_a, only_b, float(stats.binomtest(only_a, only_a + only_b).pvalue)


def paired_bootstrap(
    statistic: Callable[[npt.NDArray[np.int64]], float] | None,
    examples: int | Floats,
    *,
    seed: int,
    resamples: int = RESAMPLES,
) -> Bootstrap:
    """Resample the examples with replacement, both sides together (Efron and Tibshirani, 1993).

    Args:
        statistic: Indices of examples (N,) -> difference of the metric over them; None for the
            mean.
        examples: N; or, for the mean, the difference on each example (N,).
        seed: Seed of the resamples.
        resamples: How many, at least 1.

    Returns:
        Interval and p.
    """
    data = np.arange(examples) if isinstance(examples, int) else examples
    several = np.mean if statistic is None else one_by_one(statistic)
    return bootstraps((data,), several, seed=seed, resamples=resamples)[0]


def one_by_one(statistic: Callable[..., float]) -> Callable[..., Floats]:
    """A statistic of one resample as one of many: (R, N) of each of the data -> (R,)."""
    return lambda *many, axis: np.array([statistic(*one) for one in zip(*many, strict=True)])


def bootstraps(
    data: Sequence[npt.NDArray[Any]],
    statistics: Callable[..., Any],
    *,
    seed: int,
    resamples: int,
) -> list[Bootstrap]:
    """Resample once for several statistics.

    Args:
        data: Resampled each by itself, (N,).
        statistics: Resamples of each of the data (R, N), and `axis` -> (R,) or (M, R).
        seed: Seed of the resamples.
        resamples: How many, at least 1.

    Returns:
        Interval and p of each statistic.
    """
    from scipy import stats

    examples = sum(map(len, data))
    result = stats.bootstrap(
        data,
        statistics,
        n_resamples=resamples,
        batch=max(1, _BATCH_ELEMENTS // examples),
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    ends = zip(*np.atleast_1d(*result.confidence_interval), strict=True)
    drawn = np.atleast_2d(np.round(result.bootstrap_distribution, 12))  # 0 by rounding is 0
    return [
        Bootstrap((_rounded(low), _rounded(high)), _two_sided(values), resamples, examples)
        for (low, high), values in zip(ends, drawn, strict=True)
    ]


def _rounded(end: Any) -> float:
    return round(float(end), 12)


def _two_sided(drawn: Floats) -> float:
    rarer = min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    # The observed data count as one more resample (Davison and Hinkley, 1997, chapter 4): no
    # finite number of resamples can show that p is 0.
    return min(1.0, 2 * (rarer + 1) / (len(drawn) + 1))


def example_values(
    groups: Sequence[Rows], recorded: Sequence[Sequence[float]], metric: str, score: Score | None
) -> list[Floats] | None:
    """The metric of each single example, where the metric of a run is the mean of these.

    Whether it is one is tried, not assumed: by equality with the label, then by scoring rows one by
    one. Resampling a mean is far faster than scoring the rows of each resample.

    Args:
        groups: For each group, the N rows of each seed.
        recorded: For each group, the metric of each seed as results.json has it.
        metric: Its name for `score`.
        score: Scores rows.

    Returns:
        For each group (S, N), NaN for examples where the metric is not defined; None where the
        metric is not a mean over examples.
    """
    ways: list[Callable[[Answer], float]] = []
    if all("label" in row for group in groups for rows in group for row in rows):
        ways.append(lambda row: float(row["prediction"] == row["label"]))
    if score is not None:
        ways.append(lambda row: score([row]).get(metric, np.nan))
    for way in ways:
        if not _is_mean(groups[0][0], recorded[0][0], way):  # the first run decides most cases
            continue
        values = [np.array([[way(row) for row in rows] for rows in group]) for group in groups]
        defined = ~np.isnan(values[0][0])
        same = all(np.array_equal(~np.isnan(row), defined) for group in values for row in group)
        means = [_means(group) for group in values]
        if same and all(map(_equal, means, recorded)):
            return values
    return None


def _is_mean(rows: Sequence[Answer], recorded: float, way: Callable[[Answer], float]) -> bool:
    return _equal(_means(np.array([[way(row) for row in rows]])), [recorded])


def _means(values: Floats) -> Floats:
    return np.asarray(np.nanmean(values, axis=1)) if (~np.isnan(values)).any() else values[:, 0]


def _equal(means: Floats, recorded: Sequence[float]) -> bool:
    return bool(np.allclose(means, recorded, rtol=0, atol=1e-9))


def bootstrap_values(values: Sequence[Floats], *, seed: int, resamples: int) -> Bootstrap:
    """Bootstrap of a metric that is a mean over examples, and a mean over the seeds of a group.

    Args:
        values: Of the two groups, (S, N), NaN for examples where the metric is not defined.
        seed: Seed of the resamples.
        resamples: How many.
    """
    differences = values[0].mean(axis=0) - values[1].mean(axis=0)  # (N,)
    return paired_bootstrap(
        None, differences[~np.isnan(differences)], seed=seed, resamples=resamples
    )


class Rescored:
    """Differences of metrics that are scored again on each resample, for each seed of both groups.

    All metrics come from one scoring, which is cached: bootstraps with the same seed draw the same
    resamples.
    """

    def __init__(self, groups: Sequence[Rows], score: Score) -> None:
        """Set what is to be scored.

        Args:
            groups: For each of the two groups, the N rows of each seed.
            score: Scores rows; a resample for which a metric is not defined (such as one without
                any example of its class) counts as 0.
        """
        self._groups, self._score = groups, score
        self._cached: dict[bytes, list[list[Mapping[str, float]]]] = {}

    def affordable(self, resamples: int) -> int:
        """As many of the resamples as can be scored in about a minute; 0 if less than 1,000."""
        runs = sum(map(len, self._groups))
        size = runs * sum(100 + len(json.dumps(row)) for row in self._groups[0][0])
        most = MOST_SCORED_BYTES // size
        return min(resamples, most) if most >= FEWEST_RESAMPLES else 0

    def bootstrap(self, metric: str, *, seed: int, resamples: int) -> Bootstrap:
        """The bootstrap of one metric."""

        def difference(chosen: npt.NDArray[np.int64]) -> float:
            first, second = self.means(metric, chosen)
            return first - second

        return paired_bootstrap(difference, len(self._groups[0][0]), seed=seed, resamples=resamples)

    def means(self, metric: str, chosen: npt.NDArray[np.int64]) -> list[float]:
        """A metric of these examples for each group, the mean over its seeds."""
        return [
            sum(scores.get(metric, 0.0) for scores in group) / len(group)
            for group in self._scores(chosen)
        ]

    def _scores(self, chosen: npt.NDArray[np.int64]) -> list[list[Mapping[str, float]]]:
        key = hashlib.blake2b(chosen.tobytes(), digest_size=16).digest()
        if key not in self._cached:
            numbers = chosen.tolist()
            self._cached[key] = [
                [self._score([rows[number] for number in numbers]) for rows in group]
                for group in self._groups
            ]
        return self._cached[key]


def align(rows: Sequence[Answer], reference: Sequence[Answer], where: str) -> Sequence[Answer]:
    """Bring rows into the order of others that answer the same examples.

    Args:
        rows: Rows of one run.
        reference: Rows of another, in the order to take.
        where: The files of the two, for the message.

    Raises:
        DataError: They answer different examples, or an example's gold answer differs.
    """
    ids = [row["id"] for row in reference]
    if [row["id"] for row in rows] != ids:
        by_id = {row["id"]: row for row in rows}
        if len(by_id) != len(rows) or len(rows) != len(ids) or by_id.keys() != set(ids):
            raise DataError(
                f"{where}: expected answers to the same examples, got {len(rows)} and {len(ids)} "
                f"with {len(by_id.keys() & set(ids))} ids in common; compare runs that were scored "
                "on the same data"
            )
        rows = [by_id[number] for number in ids]
    for row, other in zip(rows, reference, strict=True):
        if _gold(row) != _gold(other):
            raise DataError(
                f"{where}: example {row['id']!r} has the gold {_gold(row)!r} in one and "
                f"{_gold(other)!r} in the other; compare runs that were scored on the same data"
            )
    return rows


def _gold(row: Answer) -> Any:
    return row.get("label", row.get("answers"))
