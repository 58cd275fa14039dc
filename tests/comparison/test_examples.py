"""What the answers to the same examples say, held against SciPy, scikit-learn and simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from finetune.comparison import Answer, mcnemar, paired_bootstrap
from finetune.comparison.example_tests import unpaired_bootstrap
from finetune.comparison.examples import (
    Rescored,
    align,
    bootstrap_values,
    example_values,
)
from finetune.errors import DataError
from tests.made.groups import accuracy_of, answers

SIGMAS = 3.3


def f1_of(rows: Sequence[Answer]) -> dict[str, float]:
    said, true = ([row[key] for row in rows] for key in ("prediction", "label"))
    return {"f1": float(metrics.f1_score(true, said, pos_label="yes", zero_division=0))}


def test_mcnemar_is_the_sign_test_of_the_examples_that_tell_the_runs_apart() -> None:
    """Nine against two: 2 (1 + 11 + 55) / 2^11."""
    a = [True] * 9 + [False] * 2 + [True] * 50 + [False] * 40
    b = [False] * 9 + [True] * 2 + [True] * 50 + [False] * 40
    assert mcnemar(a, b) == (9, 2, pytest.approx(2 * 67 / 2048))


def test_runs_that_are_right_on_the_same_examples_are_not_told_apart() -> None:
    assert mcnemar([True, False], [True, False]) == (0, 0, 1.0)


def test_mcnemar_errs_in_at_most_5_of_100_attempts() -> None:
    rng = np.random.default_rng(0)
    attempts = 500
    right = rng.random((attempts, 2, 150)) < 0.7
    wrong = sum(mcnemar(a, b)[2] < 0.05 for a, b in right)
    assert wrong / attempts < 0.05 + SIGMAS * math.sqrt(0.05 * 0.95 / attempts)


def test_bootstrap_interval_of_a_mean_nears_the_normal_one() -> None:
    differences = np.random.default_rng(1).normal(0.06, 1, size=2_000)
    result = paired_bootstrap(None, differences, seed=0)
    reach = 1.96 * differences.std() / math.sqrt(2_000)
    low, high = result.interval
    assert low == pytest.approx(differences.mean() - reach, abs=0.1 * reach)
    assert high == pytest.approx(differences.mean() + reach, abs=0.1 * reach)
    assert (result.resamples, result.examples) == (10_000, 2_000)
    expected = 2 * stats.norm.sf(1.96 * differences.mean() / reach)
    assert result.p == pytest.approx(expected, rel=0.35)


def test_bootstrap_of_a_statistic_draws_what_that_of_the_mean_draws() -> None:
    differences = np.random.default_rng(1).integers(-1, 2, size=50).astype(float)
    mean = paired_bootstrap(None, differences, seed=3, resamples=500)
    again = paired_bootstrap(
        lambda chosen: float(differences[chosen].mean()), 50, seed=3, resamples=500
    )
    assert again == mean


def test_seed_decides_the_resamples() -> None:
    differences = np.random.default_rng(1).normal(size=50)
    one, same, other = (
        paired_bootstrap(None, differences, seed=seed, resamples=200) for seed in (1, 1, 2)
    )
    assert one == same
    assert one != other


def test_differences_that_are_all_zero_give_the_interval_zero_and_p_one() -> None:
    result = paired_bootstrap(None, np.zeros(30), seed=0, resamples=100)
    assert result.interval == (0.0, 0.0)
    assert result.p == 1.0


def test_bootstrap_p_counts_the_drawn_resamples_and_the_one_at_hand() -> None:
    """(k + 1) / (n + 1) on each side, as Davison and Hinkley (1997, section 4.2): never 0."""
    result = paired_bootstrap(None, np.full(20, 0.1), seed=0, resamples=199)
    assert result.p == pytest.approx(2 * 1 / 200)


def test_bootstrap_interval_covers_the_true_difference_in_95_of_100_attempts() -> None:
    rng = np.random.default_rng(4)
    attempts, covered = 400, 0
    for attempt in range(attempts):
        hard = rng.random(300)  # the same examples are hard for both
        a, b = (rng.random(300) < np.clip(skill - 0.4 * hard, 0, 1) for skill in (0.95, 0.9))
        values = [np.array([side], dtype=float) for side in (a, b)]
        low, high = bootstrap_values(values, seed=attempt, resamples=500).interval
        covered += low <= 0.05 <= high
    # A percentile interval of few resamples is a little narrow: 0.945 at this size.
    assert abs(covered / attempts - 0.945) < SIGMAS * math.sqrt(0.95 * 0.05 / attempts)


def test_bootstrap_averages_over_all_seeds_of_a_group() -> None:
    """The first seed alone would see no difference, the second alone twice the one there is."""
    right, wrong = np.ones(50), np.zeros(50)
    values = [np.array([wrong, right]), np.array([wrong, wrong])]
    result = bootstrap_values(values, seed=0, resamples=100)
    assert result.interval == (0.5, 0.5)
    assert bootstrap_values(values[::-1], seed=0, resamples=100).interval == (-0.5, -0.5)


def test_share_of_right_answers_is_found_to_be_a_mean() -> None:
    rows = [[answers(0.8, 1), answers(0.8, 2)], [answers(0.7, 1)]]
    wanted = [[accuracy_of(run) for run in group] for group in rows]
    values = example_values(rows, wanted, "subset_accuracy", None)
    assert values is not None
    assert [group.shape for group in values] == [(2, 200), (1, 200)]
    assert values[0].mean(axis=1) == pytest.approx(wanted[0])


def test_score_that_is_a_mean_is_found_by_scoring_rows_one_by_one() -> None:
    """As token F1 of passages, which have no label to compare with."""
    rows = [{"id": 1, "prediction": "a b"}, {"id": 2, "prediction": "a"}]

    def score(rows: Sequence[Answer]) -> dict[str, float]:
        return {"f1": float(np.mean([len(row["prediction"]) / 3 for row in rows]))}

    values = example_values([[rows], [rows]], [[2 / 3], [2 / 3]], "f1", score)
    assert values is not None
    assert values[0] == pytest.approx(np.array([[1, 1 / 3]]))


def test_score_of_a_part_of_the_examples_is_a_mean_over_this_part() -> None:
    rows = [{"id": number, "prediction": number % 3} for number in range(9)]

    def score(rows: Sequence[Answer]) -> dict[str, float]:
        part = [row["prediction"] == 1 for row in rows if row["prediction"]]
        return {"part": float(np.mean(part))} if part else {}

    values = example_values([[rows], [rows]], [[0.5], [0.5]], "part", score)
    assert values is not None
    assert bootstrap_values(values, seed=0, resamples=10).examples == 6


def test_f1_and_stale_answers_are_no_means() -> None:
    rows = [[answers(0.8, 1)], [answers(0.7, 1)]]
    wanted = [[f1_of(run)["f1"] for run in group] for group in rows]
    assert example_values(rows, wanted, "f1", f1_of) is None
    assert example_values(rows, [[0.123], [0.456]], "accuracy", None) is None


def test_score_is_computed_anew_on_each_resample_and_averaged_over_seeds() -> None:
    groups = [[answers(0.9, 1, 40), answers(0.9, 2, 40)], [answers(0.6, 1, 40)]]
    result = Rescored(groups, f1_of).bootstrap("f1", seed=5, resamples=50)

    def difference(chosen: np.ndarray) -> float:
        one, two, other = (
            f1_of([rows[number] for number in chosen])["f1"] for group in groups for rows in group
        )
        return (one + two) / 2 - other

    assert result == paired_bootstrap(difference, 40, seed=5, resamples=50)
    assert result.interval[0] > 0


def test_metrics_of_one_score_share_the_scoring() -> None:
    calls = 0

    def score(rows: Sequence[Answer]) -> dict[str, float]:
        nonlocal calls
        calls += 1
        return f1_of(rows) | {"other": 1.0}

    rescored = Rescored([[answers(0.9, 1, 20)], [answers(0.6, 1, 20)]], score)
    rescored.bootstrap("f1", seed=0, resamples=30)
    once = calls
    rescored.bootstrap("other", seed=0, resamples=30)
    assert calls == once


def test_resamples_are_fewer_for_many_rows_and_none_for_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rescored = Rescored([[answers(0.9, 1)], [answers(0.6, 1)]], f1_of)
    assert rescored.affordable(10_000) == 10_000
    monkeypatch.setattr("finetune.comparison.examples.MOST_SCORED_BYTES", 100_000_000)
    assert 1_000 < rescored.affordable(10_000) < 10_000
    assert rescored.affordable(50) == 50
    monkeypatch.setattr("finetune.comparison.examples.MOST_SCORED_BYTES", 1_000_000)
    assert rescored.affordable(10_000) == 0


def test_rows_are_brought_into_the_order_of_the_others() -> None:
    rows = answers(0.8, 1, 10)
    assert align(rows[::-1], rows, "x") == rows


def test_ids_that_occur_twice_are_taken_in_their_order() -> None:
    rows: list[Answer] = [{"id": 7, "prediction": 1}, {"id": 7, "prediction": 2}]
    assert align(rows, rows, "x") is rows


def test_answers_to_other_examples_are_refused() -> None:
    rows = answers(0.8, 1, 10)
    message = "x: expected answers to the same examples, got 9 and 10 with 9 ids in common; compa"
    with pytest.raises(DataError, match=message):
        align(rows[:9], rows, "x")


def test_another_gold_of_an_example_is_refused() -> None:
    rows = answers(0.8, 1, 3)
    others = [row | {"label": "maybe"} for row in rows]
    message = "x: example 0 has the gold 'maybe' in one and '(yes|no)' in the other; compare runs"
    with pytest.raises(DataError, match=message):
        align(others, rows, "x")


def test_unpaired_interval_of_accuracies_nears_that_of_two_proportions() -> None:
    groups = ([answers(0.8, 1, 800), answers(0.8, 2, 800)], [answers(0.7, 3, 500)])
    recorded = tuple([accuracy_of(rows) for rows in group] for group in groups)

    def score(rows: Sequence[Answer]) -> dict[str, float]:
        return {"accuracy": accuracy_of(rows)}

    result = unpaired_bootstrap(groups, (recorded[0], recorded[1]), "accuracy", score)
    assert result is not None
    right = [
        np.mean([[row["prediction"] == row["label"] for row in rows] for rows in group], axis=0)
        for group in groups
    ]
    reach = 1.96 * math.sqrt(sum(one.var() / len(one) for one in right))
    difference = right[0].mean() - right[1].mean()
    assert result.interval == pytest.approx((difference - reach, difference + reach), abs=0.005)
    assert (result.examples, result.resamples) == (1_300, 10_000)


def quick_f1(rows: Sequence[Answer]) -> dict[str, float]:
    """As `f1_of`, without the time that scikit-learn takes, by a name that nobody knows."""
    yes = [(row["prediction"] == "yes") + (row["label"] == "yes") for row in rows]
    return {"own": 2 * yes.count(2) / max(1, sum(yes))}


def test_unpaired_interval_of_a_score_that_is_no_mean_resamples_both_sides() -> None:
    groups = ([answers(0.8, 1, 60)], [answers(0.7, 3, 40)])
    recorded = tuple([quick_f1(rows)["own"] for rows in group] for group in groups)
    result = unpaired_bootstrap(groups, (recorded[0], recorded[1]), "own", quick_f1, resamples=1000)
    assert result is not None
    rng = np.random.default_rng(0)
    drawn = [
        np.subtract(
            *(
                quick_f1([rows[number] for number in rng.integers(len(rows), size=len(rows))])[
                    "own"
                ]
                for (rows,) in groups
            )
        )
        for _ in range(1000)
    ]
    assert result.interval == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.03)


def test_unpaired_interval_is_left_out_where_scoring_would_take_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("finetune.comparison.examples.MOST_SCORED_BYTES", 1_000)
    groups = ([answers(0.8, 1, 60)], [answers(0.7, 3, 40)])
    recorded = ([quick_f1(groups[0][0])["own"]], [quick_f1(groups[1][0])["own"]])
    assert unpaired_bootstrap(groups, recorded, "own", quick_f1) is None
