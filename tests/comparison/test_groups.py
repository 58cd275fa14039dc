"""Run folders read as groups, and what is wrong with them said in a line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from finetune.comparison import Group, Run
from finetune.comparison.groups import split_of
from finetune.errors import ConfigError, DataError
from finetune.runs.groups import read_group
from tests.made.groups import make_group, results_of, write_seed
from tests.made.texts import write_json

Write = Callable[[Group], Path]


def test_run_of_several_seeds_comes_back_as_it_was(write_group: Write) -> None:
    group = make_group("runs", 0.8, [1, 2, 10])
    found = read_group(write_group(group))
    assert (found.task, found.split, found.seeds) == ("glue/sst2", "validation", (1, 2, 10))
    assert found.values("accuracy") == group.values("accuracy")
    assert [run.rows("validation") for run in found.runs] == [
        run.answers["validation"] for run in group.runs
    ]
    assert found.runs[0].rows("test") is None


def test_run_of_one_seed_is_a_group_of_one(tmp_path: Path) -> None:
    group = make_group("x", 0.8, [7])
    write_seed(tmp_path / "x", group.runs[0], group)
    found = read_group(tmp_path / "x")
    assert found.seeds == (7,)
    assert found.values("accuracy") == group.values("accuracy")


def test_list_of_runs_is_a_group_in_the_order_of_seeds(tmp_path: Path) -> None:
    group = make_group("x", 0.8, [3, 1, 2])
    folders = [tmp_path / f"run{run.seed}" for run in group.runs]
    for folder, run in zip(folders, group.runs, strict=True):
        write_seed(folder, run, group)
    found = read_group(folders)
    assert found.seeds == (1, 2, 3)
    assert found.name == f"{folders[0]} and 2 more"


def test_seeds_of_a_run_that_has_not_ended_are_taken_with_a_note(write_group: Write) -> None:
    folder = write_group(make_group("runs", 0.8, [1, 2, 3]))
    (folder / "results.json").unlink()
    shutil.rmtree(folder / "seed-2")
    found = read_group(folder)
    assert found.seeds == (1, 3)
    assert found.notes == (f"{folder} has no results.json of its own: the 2 runs in it are taken",)


def test_metrics_are_those_of_every_seed_and_no_thresholds() -> None:
    runs = (
        Run(1, {"f1": 0.5, "best_f1_threshold": 0.1, "extra": 1.0}),
        Run(2, {"f1": 0.6, "best_f1_threshold": 0.2}),
    )
    group = Group("x", "squad/2.0", "validation", runs)
    assert group.metrics == ["f1"]
    with pytest.raises(ConfigError, match="x: no metric 'f2' in every seed; choose one of f1"):
        group.values("f2")


def test_metric_of_another_split_names_it() -> None:
    assert split_of("accuracy", "validation_matched") == ("validation_matched", "accuracy")
    assert split_of("validation_mismatched/f1", "x") == ("validation_mismatched", "f1")


def test_folder_without_results_is_refused(tmp_path: Path) -> None:
    message = "expected a run with results.json, or a folder of such runs, got neither; name"
    with pytest.raises(DataError, match=message):
        read_group(tmp_path)
    with pytest.raises(DataError, match=message):
        read_group(tmp_path / "none")


def test_no_folders_are_refused() -> None:
    with pytest.raises(DataError, match="expected at least one run folder, got none"):
        read_group([])


def test_runs_of_different_tasks_are_refused(tmp_path: Path) -> None:
    group = make_group("x", 0.8, [1, 2])
    write_seed(tmp_path / "a", group.runs[0], group)
    write_seed(tmp_path / "b", group.runs[1], replace(group, task="glue/cola"))
    message = r"got glue/sst2 \(validation\) in .*a and glue/cola \(validation\) in .*b; name"
    with pytest.raises(DataError, match=message):
        read_group(tmp_path)


def test_seed_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    group = make_group("x", 0.8, [1])
    for name in "ab":
        write_seed(tmp_path / name, group.runs[0], group)
    with pytest.raises(DataError, match="got seed 1 2 times: .*a and .*b; leave all but one out"):
        read_group([tmp_path / "a", tmp_path / "b"])


@pytest.mark.parametrize("content", ["{", "", "\udcff"])
def test_results_that_are_no_json_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=r"results\.json: expected JSON, got"):
        read_group(tmp_path)


@pytest.mark.parametrize("key", ["task", "split", "metrics", "seed"])
def test_results_without_a_part_are_refused(tmp_path: Path, key: str) -> None:
    group = make_group("x", 0.8, [1])
    results = results_of(group.runs[0], group)
    del results[key]
    write_json(tmp_path / "results.json", results)
    with pytest.raises(DataError, match=rf"results\.json: .* got no {key}; train or evaluate"):
        read_group(tmp_path)


@pytest.mark.parametrize("value", [None, "0.8", float("nan"), True])
def test_metric_that_is_no_number_is_refused(tmp_path: Path, value: object) -> None:
    results = {"task": "t", "split": "s", "seed": 1, "metrics": {"accuracy": value}}
    write_json(tmp_path / "results.json", results)
    with pytest.raises(DataError, match=r"results\.json: expected a number as accuracy, got"):
        read_group(tmp_path)


@pytest.mark.parametrize("content", [[], {"seeds": [1, 2]}, {"seeds": [], "runs": []}])
def test_results_of_another_form_are_refused(tmp_path: Path, content: object) -> None:
    write_json(tmp_path / "results.json", content)
    with pytest.raises(DataError, match=r"results\.json: expected"):
        read_group(tmp_path)


@pytest.mark.parametrize("line", ["{", "[1]", '{"id": 1}', "\udcff"])
def test_damaged_answer_is_refused_with_its_line(write_group: Write, line: str) -> None:
    folder = write_group(make_group("runs", 0.8, [1]))
    file = folder / "seed-1" / "predictions" / "validation.jsonl"
    rows = file.read_bytes().splitlines(keepends=True)
    rows[3] = line.encode(errors="surrogateescape") + b"\n"
    file.write_bytes(b"".join(rows))
    with pytest.raises(DataError, match=r"validation\.jsonl:4: expected a JSON object with id and"):
        read_group(folder).runs[0].rows("validation")
