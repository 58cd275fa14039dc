"""How the results of a run read on the terminal."""

from __future__ import annotations

from typing import Any

import pytest

from finetune.cli.results_table import results_table
from finetune.runs.results import over_seeds


def result(seed: int, accuracy: float, *, collapsed: bool = False) -> dict[str, Any]:
    return {
        "task": "glue/sst2",
        "split": "validation",
        "seed": seed,
        "metrics": {"accuracy": accuracy},
        "collapsed": collapsed,
    }


@pytest.mark.parametrize("seeds", [1, 3, 5, 9, 30])
def test_the_table_of_any_number_of_seeds_fits_80_columns(seeds: int) -> None:
    runs = [
        {
            **result(seed, seed / 100),
            "task": "glue/mnli",
            "metrics": {"accuracy": 0.5, "validation_mismatched/accuracy": seed / 100},
            "baselines": {"trivial": {"accuracy": 0.35, "validation_mismatched/accuracy": 0.35}},
        }
        for seed in range(1, seeds + 1)
    ]
    text = results_table(over_seeds(runs))
    assert max(map(len, text.splitlines())) <= 80
    for seed in range(1, seeds + 1):
        assert f"seed {seed}" in text
    assert "baseline" in text


def test_shares_are_shown_in_percent_and_losses_as_they_are() -> None:
    run = {**result(1, 0.91284), "metrics": {"accuracy": 0.91284, "loss": 2.5}}
    assert results_table(run).splitlines() == [
        "glue/sst2 (validation)  seed 1",
        "----------------------  ------",
        "accuracy (%)             91.28",
        "loss                    2.5000",
    ]


def test_the_table_of_several_seeds_names_degenerate_ones() -> None:
    text = results_table(over_seeds([result(1, 0.5, collapsed=True), result(2, 0.7)]))
    assert text.splitlines() == [
        "glue/sst2 (validation)   mean    std  seed 1  seed 2",
        "----------------------  -----  -----  ------  ------",
        "accuracy (%)            60.00  14.14   50.00   70.00",
        "degenerate (one answer for every example): seed 1",
    ]


@pytest.mark.parametrize(
    "baseline",
    [{"baselines": {"trivial": {"accuracy": 0.5}}}, {"majority": {"accuracy": 0.5}}],
    ids=["now", "as older runs have it"],
)
def test_the_trivial_baseline_is_beside_the_scores(baseline: dict[str, Any]) -> None:
    run = {**result(1, 0.75), **baseline}
    for results in (run, over_seeds([run, {**run, "seed": 2}])):
        lines = results_table(results).splitlines()
        assert lines[0].endswith("  trivial baseline")
        assert lines[2].endswith("     50.00")


def test_classes_are_shown_one_by_one_unless_they_are_many() -> None:
    row = {"precision": 0.5, "recall": 0.25, "f1": 1 / 3, "support": 1200}
    one = {**result(1, 0.75), "report": {"per_class": {"yes": row, "no, never": row}}}
    lines = results_table(one).splitlines()
    assert lines[-1].split() == ["no,", "never", "50.0", "25.0", "33.3", "1,200"]
    assert len(lines) == 3 + 1 + 4
    many = {**one, "report": {"per_class": {str(n): row for n in range(21)}}}
    assert results_table(many) == results_table(result(1, 0.75))


def test_a_number_that_was_tuned_is_shown_as_such() -> None:
    decided = {"null_threshold": -1.25, "tuned_on": "validation"}
    lines = results_table({**result(1, 0.75), "decision": decided}).splitlines()
    assert lines[-1] == "null_threshold = -1.25, tuned on validation"


def test_run_below_an_elementary_baseline_is_warned_of() -> None:
    baselines = {"trivial": {"accuracy": 0.9}, "bag_of_words": {"accuracy": 0.8}}
    run = {**result(1, 0.75), "baselines": baselines}
    lines = results_table(run).splitlines()
    assert lines[0].endswith("seed 1  trivial baseline  bag of words")
    assert lines[2].split() == ["accuracy", "(%)", "75.00", "90.00", "80.00"]
    assert lines[3:] == [
        "warning: below the baseline bag of words in accuracy: 75.00 against 80.00"
    ]
    many = over_seeds([run, {**run, "metrics": {"accuracy": 0.84}}])
    assert "79.50 against 80.00" in results_table(many)
    assert "warning" not in results_table({**run, "metrics": {"accuracy": 0.8}})


def test_what_was_tuned_and_what_it_changed_stand_below_the_table() -> None:
    numbers = {"temperature": 1.83, "threshold/a": 0.2, "threshold/b": 0.45}
    run = {
        **result(1, 0.5),
        "decision": {**numbers, "tuned_on": "validation"},
        "fixed_thresholds": {"accuracy": 0.45},
        "calibration": {
            "validation": {
                "nll": {"before": 0.5, "after": 0.25},
                "ece": {"before": 0.1, "after": 0.1},
            }
        },
    }
    assert results_table(run).splitlines()[3:] == [
        "temperature = 1.83, tuned on validation",
        "thresholds of 2 classes: 0.2 to 0.45, tuned on validation",
        "with thresholds of 0.5: accuracy 45.00",
        "calibration on validation: nll 0.5000 -> 0.2500, ece 10.00",
    ]


def test_an_ensemble_stands_beside_its_seeds() -> None:
    each = over_seeds([result(1, 0.5), result(2, 0.7)])
    run = {
        "task": "glue/sst2",
        "split": "validation",
        "metrics": {"accuracy": 0.75},
        "ensemble": {
            "seeds": each["seeds"],
            "each": each["metrics"],
            "average_weights": {"accuracy": 0.4},
        },
        "collapsed": True,
    }
    lines = results_table(run).splitlines()
    titles = "ensemble  average weights   mean    std  seed 1  seed 2"
    assert " ".join(titles.split()) in " ".join(" ".join(lines).split())
    assert "75.00            40.00  60.00  14.14" in " ".join(lines)
    assert lines[-1] == "degenerate (one answer for every example)"
