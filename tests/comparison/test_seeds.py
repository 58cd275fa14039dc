"""What values over seeds say, held against SciPy, textbooks and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from finetune.comparison import holm, seed_tests, seeds_needed, spread
from finetune.comparison.seeds import t_test

A = [0.8360, 0.8349, 0.8314, 0.8401]
B = [0.8222, 0.8039, 0.8234, 0.8375]
SIGMAS = 3.3
"""Standard errors that a simulated share may lie from the true one: 1 in 1,000 would not."""


def test_paired_interval_and_t_are_those_of_scipy() -> None:
    tests = seed_tests(A, B, paired=True)
    result = stats.ttest_rel(A, B)
    assert tests.t_p == pytest.approx(result.pvalue)
    assert tests.interval == pytest.approx(tuple(result.confidence_interval(0.95)))
    assert tests.rank_p == pytest.approx(stats.wilcoxon(A, B).pvalue)
    assert tests.difference == pytest.approx(np.mean(A) - np.mean(B))


def test_unpaired_interval_and_t_are_those_of_welch() -> None:
    """By hand: the standard error and the degrees of freedom of Welch and Satterthwaite."""
    tests = seed_tests(A, B[:3], paired=False)
    parts = np.var(A, ddof=1) / 4, np.var(B[:3], ddof=1) / 3
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 3 + parts[1] ** 2 / 2)
    reach = stats.t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert tests.interval == pytest.approx((tests.difference - reach, tests.difference + reach))
    assert tests.t_p == pytest.approx(stats.ttest_ind(A, B[:3], equal_var=False).pvalue)
    assert tests.rank_p == pytest.approx(stats.mannwhitneyu(A, B[:3]).pvalue)


def test_spread_divides_by_one_less_and_is_none_for_one_value() -> None:
    assert spread(A).std == pytest.approx(np.std(A, ddof=1))
    assert spread(A).values == tuple(A)
    assert spread([0.5, 0.7]).std == pytest.approx(0.1 * math.sqrt(2))
    assert spread([0.5]).std is None


@pytest.mark.parametrize("paired", [True, False])
def test_swapped_sides_turn_the_difference_round(paired: bool) -> None:
    one, other = seed_tests(A, B, paired=paired), seed_tests(B, A, paired=paired)
    assert one.interval is not None
    assert other.interval == pytest.approx((-one.interval[1], -one.interval[0]))
    assert (one.t_p, one.rank_p) == pytest.approx((other.t_p, other.rank_p))
    assert one.seeds_needed == other.seeds_needed


@pytest.mark.parametrize("paired", [True, False])
def test_one_seed_allows_no_test(paired: bool) -> None:
    tests = seed_tests([0.8], [0.7], paired=paired)
    assert tests.difference == pytest.approx(0.1)
    assert tests.interval is tests.t_p is tests.rank_p is tests.seeds_needed is None


def test_difference_that_is_the_same_for_every_seed_is_not_taken_for_certain() -> None:
    # Equal but for rounding: t would be 1e15 and p 0, with three seeds.
    tests = seed_tests([0.1 + 0.2, 0.5, 0.6], [0.2, 0.4, 0.5], paired=True)
    assert tests.interval is tests.t_p is None
    assert tests.rank_p == pytest.approx(0.25)


def test_values_without_any_spread_allow_no_test() -> None:
    assert seed_tests([0.6] * 3, [0.5] * 4, paired=False).t_p is None
    assert seed_tests([0.6] * 3, [0.6] * 3, paired=True).rank_p is None


def test_one_constant_side_is_tested_against_the_spread_of_the_other() -> None:
    tests = seed_tests([0.5, 0.5, 0.5], [0.61, 0.6, 0.63, 0.62], paired=False)
    assert tests.t_p is not None
    assert tests.t_p < 0.001


def test_rank_tests_of_few_seeds_reach_their_lowest_p_and_no_lower() -> None:
    apart = seed_tests([3.0, 4.1, 5.3], [0.0, 1.0, 2.0], paired=True)
    assert apart.rank_p == apart.lowest_rank_p == 0.25
    unpaired = seed_tests([3.0, 4.1, 5.3], [0.0, 1.0, 2.0], paired=False)
    assert unpaired.rank_p == pytest.approx(unpaired.lowest_rank_p)
    assert unpaired.lowest_rank_p == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0, 2.0, 2.0], [3.0, 3.0, 4.0]),  # apart, with ties: a normal approximation says 0.072
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]),  # … and 0.047 here
        ([0.5, 0.6, 0.7], [0.5, 0.5, 0.6]),
        ([0.5, 0.6, 0.7, 0.7, 0.9], [0.5, 0.4]),
    ],
)
def test_rank_sum_p_with_ties_is_that_of_all_permutations(a: list[float], b: list[float]) -> None:
    """Enumerated here: the fraction of deals whose rank sum is as far from its mean."""
    ranks = stats.rankdata(a + b)
    sums = np.array([sum(deal) for deal in itertools.combinations(ranks, len(a))])
    away = np.round(np.abs(sums - sums.mean()), 9)
    tests = seed_tests(a, b, paired=False)
    assert tests.rank_p == pytest.approx(
        np.mean(away >= round(abs(sum(ranks[: len(a)]) - sums.mean()), 9))
    )
    assert tests.lowest_rank_p == pytest.approx(np.mean(away >= away.max()))


def test_signed_rank_p_with_ties_and_zeros_is_that_of_all_signs() -> None:
    """Differences 0, 0.1, 0.1, 0.2, -0.1: four count; ranks 2, 2, 4, 2; enumerated here."""
    tests = seed_tests([0.5, 0.6, 0.7, 0.8, 0.8], [0.5, 0.5, 0.6, 0.6, 0.9], paired=True)
    signs = itertools.product((-1, 1), repeat=4)
    sums = np.abs([np.dot(sign, [2, 2, 4, 2]) for sign in signs])
    assert tests.rank_p == pytest.approx(np.mean(sums >= 6))
    assert tests.lowest_rank_p == 2 / 2**4  # of the four differences that are not zero


def test_a_single_difference_that_is_not_zero_says_nothing() -> None:
    tests = seed_tests([0.5, 0.6, 0.8], [0.5, 0.6, 0.7], paired=True)
    assert tests.rank_p == tests.lowest_rank_p == 1.0


def test_rank_p_is_never_below_its_lowest() -> None:
    rng = np.random.default_rng(5)
    for size in (2, 3, 4, 12, 20):
        for paired in (True, False):
            a = rng.integers(4, size=size).astype(float)
            b = rng.integers(4, size=size) + 6.0
            tests = seed_tests(a.tolist(), b.tolist(), paired=paired)
            assert tests.rank_p is not None
            assert tests.lowest_rank_p is not None
            assert tests.lowest_rank_p <= tests.rank_p <= 1


@pytest.mark.parametrize("size", [4, 9, 15])
def test_rank_tests_without_ties_are_the_exact_ones_of_scipy(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.normal(size=size), rng.normal(loc=0.5, size=size)
    paired = seed_tests(a.tolist(), b.tolist(), paired=True)
    assert paired.rank_p == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue)
    if size < 10:
        unpaired = seed_tests(a.tolist(), b.tolist(), paired=False)
        assert unpaired.rank_p == pytest.approx(stats.mannwhitneyu(a, b, method="exact").pvalue)


def test_paired_groups_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="as many values on both sides, got 4 and 3"):
        seed_tests(A, B[:3], paired=True)


# The standard tables of power 0.8 at two-sided 0.05 (Cohen, 1988; G*Power prints the same).
@pytest.mark.parametrize(
    ("effect", "paired", "seeds"),
    [
        (0.5, True, 34),
        (1.0, True, 10),
        (0.5, False, 64),
        (0.8, False, 26),
        (1.0, False, 17),
        (1.2, False, 12),
        (1.4, False, 10),
    ],
)
def test_seeds_needed_are_those_of_the_power_tables(
    effect: float, paired: bool, seeds: int
) -> None:
    assert seeds_needed(effect, paired=paired) == seeds


def test_seeds_needed_end_at_both_ends() -> None:
    assert seeds_needed(1e-6, paired=True) == 101
    assert seeds_needed(1e9, paired=False) == 2
    assert seeds_needed(0.0, paired=True) is None


def test_holm_gives_the_values_of_r() -> None:
    """p.adjust(c(.01, .04, .03, .005), "holm")."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.2]) == [0.2]


def test_holm_keeps_one_error_among_all_rare() -> None:
    """Five true null hypotheses: any rejected in at most 5 of 100 attempts."""
    rng = np.random.default_rng(1)
    attempts = 4_000
    wrong = sum(min(holm(list(rng.random(5)))) < 0.05 for _ in range(attempts))
    assert wrong / attempts < 0.05 + SIGMAS * math.sqrt(0.05 * 0.95 / attempts)


@pytest.mark.parametrize(
    ("sizes", "deviations", "paired"),
    [((3, 3), (1.0, 1.0), True), ((5, 5), (1.0, 3.0), True), ((5, 8), (1.0, 1.0), False)],
)
def test_interval_covers_the_true_difference_in_95_of_100_attempts(
    sizes: tuple[int, int], deviations: tuple[float, float], paired: bool
) -> None:
    rng = np.random.default_rng(2)
    true, attempts, covered = 0.7, 1_500, 0
    for _ in range(attempts):
        shared = rng.normal(size=sizes[0]) if paired else np.zeros(1)  # what a seed does to both
        a = true + shared + rng.normal(scale=deviations[0], size=sizes[0])
        b = shared + rng.normal(scale=deviations[1], size=sizes[1])
        result = t_test(a, b, paired=paired)
        assert result is not None
        covered += result[0][0] <= true <= result[0][1]
    bound = SIGMAS * math.sqrt(0.95 * 0.05 / attempts)
    assert abs(covered / attempts - 0.95) < bound
