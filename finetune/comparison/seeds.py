"""Tests over a few seeds: spread, interval of a difference, t and rank tests, Holm's correction.

A value is a metric of one run. Two groups are paired where both were run with the same seeds: then
they share the order of batches and the initial head, and the differences seed by seed are tested.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
"""Confidence of every interval."""
ALPHA = 1 - CONFIDENCE
"""A test decides where p is below this."""
POWER = 0.8
"""Probability that the suggested number of seeds shows the difference (Cohen's convention)."""
MOST_PERMUTATIONS = 100_000
"""With at most so many permutations a rank test is exact (nine values on each side, sixteen
pairs); beyond, SciPy's approximation is good and enumeration is slow."""
MOST_SEEDS = 100
"""No larger number of seeds is suggested: nobody trains more of them."""
_DECIMALS = 12
"""Metrics are ratios of counts: what differs by less than 1e-12 differs by rounding only."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of one metric over the seeds of a group."""

    values: tuple[float, ...]
    """In the order of seeds, at least one."""
    mean: float
    """Their mean."""
    std: float | None
    """Their standard deviation (n - 1); None for one value."""


@dataclass(frozen=True, slots=True)
class SeedTests:
    """Tests of the difference of two groups' means, first less second."""

    difference: float
    """Difference of the means."""
    interval: tuple[float, float] | None
    """Its 95 % interval, by t; None with fewer than two values or without any spread."""
    paired: bool
    """Whether the values were paired."""
    t_p: float | None
    """p of Student's paired or Welch's test, two-sided; None as for the interval."""
    rank_p: float | None
    """p of Wilcoxon's signed-rank test (paired) or rank-sum test, two-sided."""
    lowest_rank_p: float | None
    """The lowest that `rank_p` can be with these values in another order (ties, zeros) or signs."""
    seeds_needed: int | None
    """Seeds on each side that would show such a difference in four of five attempts; None where the
    values allow no estimate, 101 for more than 100."""


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation (n - 1) of at least one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(tuple(values), statistics.fmean(values), deviation)


def seed_tests(a: Sequence[float], b: Sequence[float], *, paired: bool) -> SeedTests:
    """Test the difference of two means over seeds.

    Args:
        a: Values of the first group, at least 1.
        b: Values of the second.
        paired: Whether the values belong together one by one; both groups then have the same size.

    Returns:
        The interval (paired t; or Welch, 1947) and the tests.

    Raises:
        ValueError: Paired groups of different sizes.
    """
    if paired and len(a) != len(b):
        raise ValueError(f"expected as many values on both sides, got {len(a)} and {len(b)}")
    first, second = _rounded(a), _rounded(b)
    by_t = t_test(first, second, paired=paired)
    by_rank = _rank_test(first, second, paired=paired)
    needed = None
    if by_t is not None:
        needed = seeds_needed(_effect(first, second, paired=paired), paired=paired)
    return SeedTests(
        difference=statistics.fmean(a) - statistics.fmean(b),
        interval=by_t and by_t[0],
        paired=paired,
        t_p=by_t and by_t[1],
        rank_p=by_rank and by_rank[0],
        lowest_rank_p=by_rank and by_rank[1],
        seeds_needed=needed,
    )


def t_test(a: Floats, b: Floats, *, paired: bool) -> tuple[tuple[float, float], float] | None:
    """The 95 % interval of the difference of two means by t, and p, where they are defined.

    Args:
        a: Values (N,).
        b: Values (M,); M is N if paired.
        paired: Student's test of the differences; otherwise Welch's.

    Returns:
        Interval and p; None with fewer than two values on a side, or where they do not vary: of
        three equal differences t would be infinite and p 0.
    """
    from scipy import stats

    if paired:
        a, b = _rounded(a - b), np.zeros_like(b)
    if min(len(a), len(b)) < 2 or not (np.ptp(a) or np.ptp(b)):
        return None
    with warnings.catch_warnings():  # one side may be constant, which costs no precision here
        warnings.filterwarnings("ignore", "Precision loss occurred", RuntimeWarning)
        result: Any = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
        low, high = result.confidence_interval(CONFIDENCE)
    return (float(low), float(high)), float(result.pvalue)


def _rank_test(a: Floats, b: Floats, *, paired: bool) -> tuple[float, float] | None:
    """Wilcoxon's p, signed-rank or rank-sum, and the lowest p that is possible with these values.

    Both come from the permutations of the values themselves, so ties are exact too. (SciPy's own
    tests fall back to a normal approximation at the first tie; with three values a side it is far
    below the lowest p that is possible.)
    """
    if min(len(a), len(b)) < 2 or not np.ptp(np.concatenate([a, b])):
        return None
    if not paired:
        return _rank_sum(a, b)
    differences = _rounded(a - b)
    differences = differences[differences != 0]  # as in Wilcoxon, 1945: zeros have no sign
    return _signed_rank(differences) if len(differences) else None


def _rank_sum(a: Floats, b: Floats) -> tuple[float, float]:
    """The p and its lowest value, over all ways to split the values into groups of these sizes."""
    from scipy import stats

    lowest = 2 / math.comb(len(a) + len(b), len(a))
    if 2 / lowest > MOST_PERMUTATIONS:
        return max(lowest, float(stats.mannwhitneyu(a, b).pvalue)), lowest
    ranks = 2 * stats.rankdata(np.concatenate([a, b]))  # twice: tied ranks are whole numbers then
    expected = len(a) * float(ranks.mean())

    def distance(first: Floats, second: Floats, axis: int) -> Floats:
        return np.asarray(np.abs(first.sum(axis=axis) - expected))

    return _exact((ranks[: len(a)], ranks[len(a) :]), distance, "independent")


def _signed_rank(differences: Floats) -> tuple[float, float]:
    """The p and its lowest value, over all signs that the differences (none of them 0) may have."""
    from scipy import stats

    lowest = 2.0 ** (1 - len(differences))
    if len(differences) == 1:  # either sign is as far out
        return 1.0, 1.0
    if 2 / lowest > MOST_PERMUTATIONS:
        return max(lowest, float(stats.wilcoxon(differences).pvalue)), lowest
    signed = 2 * np.sign(differences) * stats.rankdata(np.abs(differences))

    def distance(values: Floats, axis: int) -> Floats:
        return np.asarray(np.abs(values.sum(axis=axis)))

    return _exact((signed,), distance, "samples")


def _exact(samples: tuple[Floats, ...], distance: Any, kind: str) -> tuple[float, float]:
    """Fraction of all permutations at least as extreme as the values, and as the most extreme."""
    from scipy import stats

    result = stats.permutation_test(
        samples,
        distance,
        permutation_type=kind,
        n_resamples=MOST_PERMUTATIONS + 1,  # so that all of them are taken, each once
        alternative="greater",
        vectorized=True,
    )
    every = result.null_distribution
    return float(result.pvalue), float(np.mean(every >= every.max()))


def _effect(a: Floats, b: Floats, *, paired: bool) -> float:
    """The difference of means in standard deviations, as `seeds_needed` expects it."""
    if paired:
        return abs(float(np.mean(a - b))) / float(np.std(a - b, ddof=1))
    deviation = math.sqrt((float(a.var(ddof=1)) + float(b.var(ddof=1))) / 2)
    return abs(float(a.mean() - b.mean())) / deviation


def _rounded(values: npt.ArrayLike) -> Floats:
    return np.round(np.asarray(values, dtype=float), _DECIMALS)


def seeds_needed(effect: float, *, paired: bool) -> int | None:
    """Seeds on each side with which a t-test would show a difference (noncentral t distribution).

    Args:
        effect: The true difference in standard deviations: of the differences if paired, of one
            group otherwise.
        paired: Whether seeds are paired.

    Returns:
        The smallest number that does in four of five attempts; 101 if 100 do not, None for an
        effect of 0.
    """
    from scipy import stats

    if round(effect, _DECIMALS) <= 0:
        return None
    seeds = np.arange(2, MOST_SEEDS + 1)
    freedom = seeds - 1 if paired else 2 * seeds - 2
    critical = stats.t.ppf(1 - ALPHA / 2, freedom)
    # With ten deviations more the power is 1 to every digit, and in the far tail nct may be NaN.
    shift = np.minimum(effect * np.sqrt(seeds if paired else seeds / 2), critical + 10)
    enough = np.flatnonzero(stats.nct.sf(critical, freedom, shift) >= POWER)
    return int(seeds[enough[0]]) if len(enough) else MOST_SEEDS + 1


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values of several tests to control the family-wise error rate (Holm, 1979).

    SciPy has corrections for the false discovery rate only.

    Args:
        p_values: p of each of k tests.

    Returns:
        Adjusted p-values in the same order: the smallest times k, the next times k - 1, …; none
        below the one before it, none above 1.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
