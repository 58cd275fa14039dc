"""Comparisons from end to end: what is tested, corrected, said, and how it is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finetune.comparison import (
    Answer,
    Group,
    Run,
    as_json,
    as_text,
    compare,
    corrected,
    summary,
)
from finetune.comparison.examples import Score
from finetune.comparison.verdict import short_names
from finetune.errors import ConfigError, DataError
from finetune.runs.groups import compare_folders
from tests.made.groups import accuracy_of, make_group, values_group

Write = Callable[[Group], Path]


def both(rows: Sequence[Answer]) -> dict[str, float]:
    """Accuracy, and one that is no mean over examples."""
    return {"accuracy": accuracy_of(rows), "squared": accuracy_of(rows) ** 2}


def with_squared(group: Group) -> Group:
    runs = (replace(run, metrics=both(run.answers["validation"])) for run in group.runs)
    return replace(group, runs=tuple(runs))


def test_clear_difference_is_called_better_by_every_test(write_group: Write) -> None:
    good, bad = (
        write_group(make_group(name, accuracy, range(1, 6)))
        for name, accuracy in (("good", 0.9), ("bad", 0.6))
    )
    comparison = compare_folders(good, bad, "accuracy")
    (difference,) = comparison.differences
    assert difference.outcome == "better"
    assert difference.verdict.startswith("good is better than bad in accuracy by ")
    assert difference.verdict.count(". ") == 0
    assert "paired t over 5 seeds, p < 0.001" in difference.verdict
    assert difference.bootstrap is not None
    assert difference.bootstrap.interval[0] > 0
    assert [pair.seed for pair in difference.mcnemar] == ["1", "2", "3", "4", "5"]
    assert all(pair.adjusted_p >= pair.p for pair in difference.mcnemar)
    turned = compare_folders(bad, good, "accuracy").differences[0]
    assert turned.outcome == "worse"
    assert turned.verdict == difference.verdict


def test_seeds_that_differ_are_not_paired() -> None:
    comparison = compare(make_group("a", 0.9, [1, 2, 3, 4]), make_group("b", 0.6, [5, 6, 7]))
    (difference,) = comparison.differences
    assert not difference.seeds.paired
    assert difference.mcnemar == ()
    assert difference.bootstrap is not None
    assert "Welch's t over 3 and 4 seeds" in difference.verdict


def test_as_many_seeds_that_are_not_the_same_ones_are_not_paired() -> None:
    """As many on both sides: what pairs them is that they are the same seeds."""
    comparison = compare(make_group("a", 0.9, [1, 2, 3]), make_group("b", 0.6, [4, 5, 6]))
    (difference,) = comparison.differences
    assert not difference.seeds.paired
    assert difference.mcnemar == ()
    assert "Welch's t over 3 seeds" in difference.verdict


def test_one_seed_a_side_is_not_enough_and_the_examples_are_told() -> None:
    comparison = compare(make_group("a", 0.95, [1]), make_group("b", 0.6, [2]))
    (difference,) = comparison.differences
    assert difference.outcome == "not enough seeds"
    start = "a is better than b in accuracy on these examples by "
    assert difference.verdict.startswith(start)
    assert "(95 % interval over 200 examples +" in difference.verdict
    assert "1 and 1 seeds do not say more: at least 3 per side are needed" in difference.verdict
    (turned,) = compare(make_group("b", 0.6, [2]), make_group("a", 0.95, [1])).differences
    assert turned.verdict.startswith(start)
    assert "(95 % interval over 200 examples +" in turned.verdict
    (alike,) = compare(make_group("a", 0.6, [1]), make_group("b", 0.6, [1])).differences
    assert alike.verdict.startswith("No difference in accuracy between a and b on these examples: ")
    assert [pair.seed for pair in difference.mcnemar] == ["1/2"]


def test_two_seeds_a_side_are_not_enough_however_far_apart() -> None:
    (difference,) = compare(
        values_group("a", [0.9, 0.901]), values_group("b", [0.1, 0.1])
    ).differences
    assert difference.adjusted_p is not None
    assert difference.adjusted_p < 0.05
    assert difference.outcome == "not enough seeds"


def test_undecided_says_how_many_seeds_would_tell() -> None:
    a, b = values_group("a", [0.80, 0.83, 0.81]), values_group("b", [0.79, 0.80, 0.81])
    (difference,) = compare(a, b).differences
    assert difference.outcome == "undecided"
    assert difference.verdict.startswith(
        "No difference in accuracy between a and b was found: +1.33 points (95 % interval "
    )
    loss = compare(
        values_group("a", [0.80, 0.83, 0.81], "loss"), values_group("b", [0.79, 0.80, 0.81], "loss")
    )
    assert loss.verdict.startswith("No difference in loss between a and b was found: +0.0133 (95 %")
    needed = difference.seeds.seeds_needed
    assert f"not enough seeds: to show one of this size takes about {needed} per side." in (
        difference.verdict
    )


def test_difference_far_below_the_spread_is_not_promised_to_more_seeds() -> None:
    a, b = values_group("a", [0.80, 0.83, 0.81]), values_group("b", [0.83, 0.81, 0.8001])
    verdict = compare(a, b).verdict
    assert "to show one this small takes more than 100 seeds per side." in verdict


def test_equal_groups_are_called_equal() -> None:
    a, b = (values_group(name, [0.5, 0.6, 0.7]) for name in "ab")
    assert compare(a, b).verdict == (
        "No difference in accuracy between a and b: all seeds are equal."
    )


def test_constant_difference_is_not_taken_for_proof() -> None:
    (difference,) = compare(
        values_group("a", [0.6, 0.7, 0.8]), values_group("b", [0.5, 0.6, 0.7])
    ).differences
    assert difference.outcome == "undecided"
    assert difference.verdict.startswith(
        "No test over seeds is defined for accuracy of a and b: th"
    )


def test_less_is_better_for_a_loss() -> None:
    (difference,) = compare(
        values_group("a", [1.0, 1.1, 1.2], "loss"), values_group("b", [2.0, 2.2, 2.1], "loss")
    ).differences
    assert difference.outcome == "better"
    assert difference.verdict.startswith(
        "a is better than b in loss by 1.0000 (95 % interval +0.75"
    )


def test_seeds_that_agree_on_too_few_examples_are_better_on_these_only() -> None:
    """Each seed is right on the same one example more."""
    a, b = make_group("a", 0.8, [1, 2, 3, 4]), make_group("a", 0.8, [1, 2, 3, 4])
    runs = []
    for number, run in enumerate(b.runs):
        rows = [dict(row) for row in run.answers["validation"]]
        right = [row for row in rows if row["prediction"] == row["label"]]
        for row in right[: 1 + number % 2]:
            row["prediction"] = "no" if row["label"] == "yes" else "yes"
        runs.append(
            replace(run, metrics={"accuracy": accuracy_of(rows)}, answers={"validation": rows})
        )
    (difference,) = compare(a, replace(b, name="b", runs=tuple(runs))).differences
    assert difference.outcome == "better"
    assert "a is better than b in accuracy by 0.75 points on these examples (" in difference.verdict
    assert "the 200 examples are too few to say so of others" in difference.verdict


def test_all_common_metrics_are_compared_and_corrected_together() -> None:
    a, b = (with_squared(make_group(name, 0.8, [1, 2, 3])) for name in "ab")
    b = with_squared(make_group("b", 0.75, [1, 2, 3]))
    comparison = compare(a, b, score=both, resamples=200)
    accuracy, squared = comparison.differences
    assert (accuracy.metric, squared.metric) == ("accuracy", "squared")
    assert accuracy.comparisons == 2
    p_values = sorted([accuracy.seeds.t_p or 0, squared.seeds.t_p or 0])
    assert min(accuracy.adjusted_p or 0, squared.adjusted_p or 0) == pytest.approx(2 * p_values[0])
    assert len(accuracy.mcnemar) == 3
    assert squared.mcnemar == ()
    assert squared.bootstrap is not None
    assert squared.bootstrap.resamples == 200
    assert squared.notes == ()  # as many as were asked for
    assert "after Holm's correction of 2" in comparison.verdict


def test_metric_that_is_no_mean_is_tested_over_seeds_only_without_a_score() -> None:
    a, b = (
        with_squared(make_group(name, level, [1, 2, 3])) for name, level in (("a", 0.8), ("b", 0.7))
    )
    (difference,) = compare(a, b, "squared").differences
    assert difference.bootstrap is None
    assert difference.seeds.t_p is not None
    assert difference.notes == (
        "no test of squared over examples: it is not a mean over them, and no scoring function was "
        "given",
    )
    assert difference.verdict


@pytest.mark.parametrize("score", [None, both])
def test_one_example_is_compared_without_an_interval(score: Score | None) -> None:
    a, b = (with_squared(make_group(name, 0.5, [1], examples=1)) for name in "ab")
    for difference in compare(a, b, score=score).differences:
        assert difference.bootstrap is None
        assert "no test of" in difference.notes[0]
        assert difference.verdict.startswith("Not enough seeds to say whether a or b is better")


def test_two_examples_have_an_interval() -> None:
    a, b = (with_squared(make_group(name, 0.5, [1], examples=2)) for name in "ab")
    assert all(difference.bootstrap for difference in compare(a, b, score=both).differences)


def test_a_metric_that_one_example_has_is_compared_without_an_interval() -> None:
    def first(rows: Sequence[Answer]) -> dict[str, float]:
        chosen = [row for row in rows if row["id"] == 0]
        return {"first": accuracy_of(chosen)} if chosen else {}

    groups = []
    for name, level in (("a", 0.8), ("b", 0.3)):
        group = make_group(name, level, [1])
        runs = (replace(run, metrics=first(run.answers["validation"])) for run in group.runs)
        groups.append(replace(group, runs=tuple(runs)))
    (difference,) = compare(*groups, score=first).differences
    assert difference.notes == ("no test of first over examples: at least two are needed",)


def test_a_baseline_has_no_seeds() -> None:
    seeds = [0.9, 0.8]
    a, bar = values_group("a", seeds), replace(values_group("bar", [0.7] * 2), is_baseline=True)
    comparison = compare(a, bar)
    assert comparison.seeds_b == ()
    assert "B: bar (a baseline)" in as_text(comparison)
    assert comparison.verdict == (
        "Not enough seeds to say whether a or bar is better in accuracy: 2; at least 3 are needed, "
        "5 are better; the difference is +15.00 points."
    )


def test_score_that_lacks_the_metric_is_said() -> None:
    a, b = (
        with_squared(make_group(name, level, [1, 2, 3])) for name, level in (("a", 0.8), ("b", 0.7))
    )
    (difference,) = compare(a, b, "squared", score=lambda rows: {}).differences
    assert "the function that scores them does not return it" in difference.notes[0]


def test_several_comparisons_are_corrected_together() -> None:
    base = values_group("base", [0.80, 0.81, 0.79, 0.80])
    groups = [
        values_group(f"v{shift}", [0.81 + shift, 0.81, 0.81 + shift, 0.83]) for shift in (0.0, 0.01)
    ]
    single = [compare(group, base) for group in groups]
    together = corrected(single)
    for one, adjusted in zip(single, together, strict=True):
        before, after = one.differences[0], adjusted.differences[0]
        assert after.comparisons == 2
        assert after.adjusted_p is not None
        assert before.adjusted_p == before.seeds.t_p is not None
        assert after.adjusted_p >= before.adjusted_p
    lines = summary(together).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    for line, adjusted in zip(lines[2:], together, strict=True):
        (difference,) = adjusted.differences
        name, *cells, corrected_p, won = line.split()
        assert name == adjusted.a
        assert cells[:3] == ["81.50", "±", "1.00"] or cells[:3] == ["82.00", "±", "0.82"]
        assert corrected_p == f"{difference.adjusted_p:.3f}"
        assert won == "-"


def test_summary_without_a_test_shows_dashes_and_who_won() -> None:
    a, b = values_group("a", [0.6, 0.7, 0.8]), values_group("b", [0.5, 0.6, 0.7])
    line = summary([compare(a, b)]).splitlines()[-1]
    assert line.split()[-4:] == ["+10.00", "-", "-", "-"]
    a = values_group("a", [0.6, 0.71, 0.8])
    assert summary([compare(a, b)]).splitlines()[-1].split()[-1] == "A"
    assert summary([compare(b, a)]).splitlines()[-1].split()[-1] == "B"


def test_significance_lost_to_the_correction_is_said() -> None:
    base = values_group("base", [0.80, 0.80, 0.80, 0.81])
    rng = np.random.default_rng(0)
    noise = [values_group("noise", (0.805 + 0.05 * rng.normal(size=4)).tolist()) for _ in range(9)]
    first = compare(values_group("first", [0.81, 0.82, 0.81, 0.835]), base)
    assert first.differences[0].outcome == "better"
    (again, *_) = corrected([first, *(compare(group, base) for group in noise)])
    assert again.differences[0].outcome == "undecided"
    assert again.verdict.endswith("which is not enough among 10 comparisons.")


def test_runs_without_answers_are_compared_over_seeds(write_group: Write) -> None:
    folders = [
        write_group(values_group(name, values))
        for name, values in (("a", [0.5, 0.6, 0.7]), ("b", [0.4, 0.45, 0.5]))
    ]
    comparison = compare_folders(*folders)
    assert comparison.differences[0].notes == (
        f"no test of accuracy over examples: {folders[0]} has no answers on validation",
    )


def test_metric_of_a_second_split_is_tested_on_its_own_answers() -> None:
    groups = []
    for name, accuracy in (("a", 0.9), ("b", 0.6)):
        group = make_group(name, accuracy, [1, 2, 3])
        other = make_group(name, accuracy - 0.1, [1, 2, 3], examples=50)
        runs = [
            replace(
                run,
                metrics={"hard/accuracy": more.metrics["accuracy"]},
                answers=run.answers | {"hard": more.answers["validation"]},
            )
            for run, more in zip(group.runs, other.runs, strict=True)
        ]
        groups.append(replace(group, runs=tuple(runs)))
    (difference,) = compare(*groups).differences
    assert difference.bootstrap is not None
    assert difference.bootstrap.examples == 50


def test_collapsed_seeds_are_noted() -> None:
    a, b = values_group("a", [0.5, 0.6]), values_group("b", [0.5, 0.7])
    a = replace(a, runs=(a.runs[0], replace(a.runs[1], degenerate=True)))
    assert compare(a, b).notes == ("a gives one answer to every example with seed 2",)


def test_answers_that_do_not_belong_to_the_results_are_refused() -> None:
    a, b = make_group("a", 0.8, [1]), make_group("b", 0.7, [1])
    a = replace(a, runs=(replace(a.runs[0], metrics={"accuracy": 0.123, "squared": 0.5}),))
    b = with_squared(b)
    message = "a or b: expected the {} of results.json in predictions/validation.jsonl, got anoth"
    with pytest.raises(DataError, match=message.format("accuracy")):
        compare(a, b, "accuracy")
    with pytest.raises(DataError, match=message.format("squared")):
        compare(a, b, "squared", score=both)


def test_different_tasks_are_refused() -> None:
    a = values_group("a", [0.5])
    b = replace(values_group("b", [0.6]), task="glue/cola")
    message = r"got glue/sst2 \(validation\) in a and glue/cola \(validation\) in b; compare"
    with pytest.raises(DataError, match=message):
        compare(a, b)


def test_a_run_is_not_compared_with_itself(write_group: Write) -> None:
    folder = write_group(make_group("a", 0.8, [1, 2]))
    with pytest.raises(DataError, match="expected two different runs, got .*seed-1 on both sides"):
        compare_folders(folder, folder / "seed-1")


def test_unknown_metric_is_refused_with_the_nearest() -> None:
    a, b = values_group("a", [0.5]), values_group("b", [0.6])
    with pytest.raises(ConfigError, match="no metric 'acuracy' .*; did you mean 'accuracy'"):
        compare(a, b, "acuracy")


def test_groups_without_a_common_metric_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected a metric that both have, got f1 in a and loss"):
        compare(values_group("a", [0.5], "f1"), values_group("b", [0.6], "loss"))


def test_text_shows_sides_tests_and_verdict_in_80_columns() -> None:
    a = with_squared(
        make_group("runs/a-very-long-name-of-a-run-folder/with-a-tail", 0.9, range(1, 13))
    )
    b = with_squared(make_group("runs/b", 0.6, range(1, 13)))
    text = as_text(compare(a, b, score=both, resamples=50))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "glue/sst2 (validation)"
    for word in (
        "accuracy (%)",
        "A  ",
        "A - B",
        "95 % interval",
        "paired t",
        "Wilcoxon",
        "bootstrap",
    ):
        assert word in text
    assert "McNemar, seed 12" in text
    assert "…" in text
    assert "is better than b in accuracy" in text


def test_text_of_one_seed_shows_no_deviation() -> None:
    text = as_text(compare(values_group("a", [0.5]), values_group("b", [0.6])))
    assert "A  a                              50.00        -" in text
    assert "no interval" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (("runs/a", "runs/b"), ("a", "b")),
        (("/x/a/seed-1", "/x/b/seed-2"), ("a/seed-1", "b/seed-2")),
        (("/x/a", "/x/a/seed-1"), ("a", "a/seed-1")),
        (("a", "b"), ("a", "b")),
        (("x/run", "y/run"), ("x/run", "y/run")),
    ],
)
def test_names_leave_out_what_both_paths_begin_with(
    paths: tuple[str, str], names: tuple[str, str]
) -> None:
    assert short_names(*paths) == names


def test_json_holds_every_part_and_no_nan() -> None:
    comparison = compare(make_group("a", 0.9, [1, 2, 3]), make_group("b", 0.6, [1, 2, 3]))
    content = json.loads(json.dumps(as_json(comparison), allow_nan=False))
    (difference,) = content["differences"]
    assert difference["a"]["mean"] == pytest.approx(np.mean(difference["a"]["values"]))
    assert difference["bootstrap"]["resamples"] == 10_000
    assert content["verdict"] == difference["verdict"] == comparison.verdict


def test_same_comparison_gives_the_same_numbers() -> None:
    one, other = (
        compare(make_group("a", 0.8, [1, 2, 3]), make_group("b", 0.75, [1, 2, 3])) for _ in range(2)
    )
    assert one == other


def test_the_headline_comes_first() -> None:
    groups = [
        Group(
            name,
            "squad/2.0",
            "validation",
            tuple(Run(seed, {"exact_match": 0.1 * seed, "f1": 0.2 * seed}) for seed in (1, 2)),
        )
        for name in "ab"
    ]
    assert [item.metric for item in compare(*groups).differences] == ["f1", "exact_match"]
