"""Runs by task: which one is the baseline, colours, comparisons, settings that differ, warnings."""

from __future__ import annotations

from pathlib import Path

import pytest

from finetune.report.collecting import collect
from finetune.report.curves import group_order
from finetune.report.differences import differences_tables
from finetune.report.overview import headline_chart, overview_table
from finetune.report.view import TaskView, shown, task_views
from finetune.report.warnings import warnings
from finetune.runs.groups import compare_folders
from finetune.runs.inputs import differing
from tests.made.runs import PLAN, class_rows, write_class_run, write_run


def views_of(folder: Path, *baselines: Path) -> list[TaskView]:
    return task_views(collect([folder]), baselines)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    write_class_run(tmp_path / "a", 0.9, (1, 2, 3))
    write_class_run(tmp_path / "b", 0.7, (1, 2, 3))
    write_class_run(tmp_path / "c", 0.5, (1, 2, 3), encoder="none")
    return tmp_path


def test_the_run_from_scratch_is_the_baseline_and_comes_last_in_grey(three: Path) -> None:
    (view,) = views_of(three)
    assert [run.name for run in view.runs] == ["a", "b", "c"]
    assert view.baseline is view.runs[-1]
    colours = ["var(--c1)", "var(--c2)", "var(--baseline)"]
    assert [view.colour(run) for run in view.runs] == colours


def test_a_run_that_is_named_is_the_baseline_before_it(three: Path) -> None:
    (view,) = views_of(three, three / "b")
    assert view.baseline is not None
    assert view.baseline.name == "b"
    assert list(view.comparisons) == ["a", "c"]


def test_without_either_it_is_the_first(tmp_path: Path) -> None:
    for name in "ab":
        write_class_run(tmp_path / name, 0.8, (1, 2))
    (view,) = views_of(tmp_path)
    assert view.baseline is not None
    assert view.baseline.name == "a"


def test_run_below_an_elementary_baseline_is_warned_of(tmp_path: Path) -> None:
    scores = {"trivial": {"accuracy": 0.4}, "bag_of_words": {"accuracy": 0.75}}
    write_run(tmp_path / "a", "classes", {"accuracy": 0.5}, [], baselines=scores)
    (view,) = views_of(tmp_path)
    assert [problem.what for problem in warnings(view)] == [
        "below the baseline bag of words in accuracy: 50.00 against 75.00"
    ]
    assert '75.00<span class="below">bag of words</span>' in overview_table([view])
    chart = str(headline_chart([view]))
    assert '"elementary":{"name":"bag of words","value":0.75}' in chart


def test_baselines_of_seeds_that_drew_their_examples_are_averaged(tmp_path: Path) -> None:
    for seed, value in ((1, 0.6), (2, 0.8)):
        scores = {"trivial": {"accuracy": 0.5}, "bag_of_words": {"accuracy": value}}
        place = tmp_path / f"run/seed-{seed}"
        write_run(place, "classes", {"accuracy": 0.9}, [], seed, baselines=scores)
    (view,) = views_of(tmp_path)
    (run,) = view.runs
    assert run.elementary("accuracy") == ("bag_of_words", pytest.approx(0.7))
    assert run.trivial("accuracy") == 0.5


def test_a_single_run_has_no_baseline(tmp_path: Path) -> None:
    write_class_run(tmp_path / "a", 0.8, (1, 2))
    (view,) = views_of(tmp_path)
    assert view.baseline is None
    assert not view.comparisons


def test_differences_and_intervals_are_those_of_compare(three: Path) -> None:
    (view,) = views_of(three)
    difference = view.difference(view.runs[0])
    expected = compare_folders(three / "a", three / "c").differences[0]
    assert difference is not None
    assert difference.seeds == expected.seeds
    assert difference.comparisons == 2  # corrected over both runs


def test_a_figure_has_a_true_minus_and_percent_where_it_is_a_share() -> None:
    assert shown("accuracy", -0.0123, signed=True) == "−1.23"
    assert shown("accuracy", 0.5) == "50.00"
    assert shown("val_loss", 1.23456) == "1.2346"
    assert shown("accuracy", None) is None


def test_settings_that_differ_are_found_and_those_that_change_nothing_are_not() -> None:
    one = {"a": 1, "b": {"c": 2, "d": [3]}, "out": "x", "tracking": {"wandb": True}}
    other = {"a": 1, "b": {"c": 4, "d": [3]}, "out": "y", "tracking": {"wandb": False}, "e": None}
    assert differing([one, other]) == {"b.c": [2, 4], "e": [..., None]}


def test_runs_and_baselines_that_differ_alike_share_a_row(tmp_path: Path) -> None:
    for task in ("one", "two"):
        for start in ("tiny", "none"):
            folder = tmp_path / f"{task}-{start}"
            write_run(folder, task, {"accuracy": 0.5}, class_rows(1, 0.5), encoder=start)
    (table,) = differences_tables(views_of(tmp_path))
    assert table.count("encoder_from") == 1
    assert "made/one, made/two" in table


def test_troubles_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    data = {"validation": {"trimmed": 0.5}}
    write_run(folder, "classes", {"accuracy": 0.5}, [], collapsed=True, data=data)
    lines = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(lines + '{"step": 301, "train/loss": null}\n')
    (view,) = views_of(tmp_path)
    told = [problem.what for problem in warnings(view)]
    assert told == [
        "degenerate: one answer for every example with seed 1",
        "not above the trivial baseline in accuracy: 50.00 against 50.00",
        "the training loss is not finite from step 301 on",
        "50 % of the validation texts were truncated to 16 tokens",
    ]


def test_a_sound_run_gives_no_warning(three: Path) -> None:
    (view,) = views_of(three)
    assert [problem for problem in warnings(view) if problem.place == "a"] == []


def test_layer_groups_of_a_plan_stand_from_the_head_down() -> None:
    assert group_order(PLAN) == ["head", "block_1", "embeddings"]
    many = [{"groups": ["embeddings", *(f"block_{n}" for n in range(1, 13))]}]
    assert group_order(many)[:2] == ["block_12", "block_11"]
