"""Run folders found and read; what is missing or damaged is named, the rest is taken."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from finetune.report.collecting import ReportedRun, collect, number, short_names
from finetune.runs.groups import read_group
from finetune.runs.listing import list_runs
from finetune.runs.lock import held
from tests.made.runs import class_rows, write_class_run, write_run
from tests.made.texts import write_json


def one_seed(folder: Path) -> Path:
    write_run(folder, "classes", {"accuracy": 0.5}, class_rows(1, 0.5))
    return folder


def test_runs_of_one_seed_of_several_and_folders_of_runs_are_found(tmp_path: Path) -> None:
    one_seed(tmp_path / "runs" / "one")
    write_class_run(tmp_path / "runs" / "deeper" / "several", 0.8, (1, 2))
    found = collect([tmp_path / "runs"])
    assert {run.name: len(run.seeds) for run in found.runs} == {"several": 2, "one": 1}
    assert found.problems == []
    assert {run.task for run in found.runs} == {"made/classes"}


def test_seeds_that_were_made_one_by_one_are_a_run_that_is_done(tmp_path: Path) -> None:
    for seed in (1, 2):
        one_seed(tmp_path / "run" / f"seed-{seed}")
    (tmp_path / "run" / "seed-1.log").write_text("what a scheduler wrote\n")
    found = collect([tmp_path / "run"])
    assert [(run.name, run.state, len(run.seeds)) for run in found.runs] == [("run", "done", 2)]


def test_a_run_that_is_named_twice_is_taken_once(tmp_path: Path) -> None:
    one_seed(tmp_path / "runs" / "one")
    found = collect([tmp_path / "runs" / "one", tmp_path / "runs"])
    assert [run.name for run in found.runs] == ["one"]


def test_a_missing_folder_a_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    places = [tmp_path / name for name in ("none", "empty", "file")]
    found = collect(places)
    assert [problem.place for problem in found.problems] == list(map(str, places))
    endings = ["no such folder", "none in it", "a file"]
    assert [problem.what.split("got ")[1] for problem in found.problems] == endings


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"task": ', "results.json: expected JSON, got"),
        (b"[1]", "results.json: expected results by name, got list"),
        (b'{"task": "x"}', "expected results with task, split, metrics and seed, got no split"),
        (b"\xff\xfe\x00", "results.json: expected JSON, got"),
    ],
)
def test_damaged_results_are_named_and_the_curves_are_kept(
    tmp_path: Path, content: bytes, message: str
) -> None:
    folder = one_seed(tmp_path / "one")
    (folder / "results.json").write_bytes(content)
    found = collect([folder])
    assert any(message in problem.what for problem in found.problems)
    assert [run.group for run in found.runs] == [None]


def test_a_folder_with_nothing_that_can_be_read_is_named_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: [")
    found = collect([tmp_path])
    assert not found.runs
    assert "not readable as YAML" in found.problems[0].what


def test_a_last_line_that_was_cut_off_is_passed_over_and_another_is_told(tmp_path: Path) -> None:
    folder = one_seed(tmp_path / "one")
    file = folder / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole + '{"step": 31')
    assert collect([folder]).problems == []
    file.write_text('nothing\n{"a": 1}\n' + whole)
    (problem,) = collect([folder]).problems
    assert problem.what == "metrics.jsonl: 2 of 32 lines are not JSON objects with a step"


def test_a_seed_without_results_is_told_and_the_others_are_taken(tmp_path: Path) -> None:
    write_class_run(tmp_path / "run", 0.8, (1, 2, 3))
    (tmp_path / "run" / "results.json").unlink()
    (tmp_path / "run" / "seed-3" / "results.json").unlink()
    found = collect([tmp_path / "run"])
    (run,) = found.runs
    assert run.group is not None
    assert run.group.seeds == (1, 2)
    assert run.state == "interrupted"
    assert found.problems[0].what == "not all seeds have ended: seed-3"
    assert not found.problems[0].damaged


def test_seeds_whose_folders_are_gone_are_read_off_the_results_of_all(tmp_path: Path) -> None:
    write_class_run(tmp_path / "run", 0.8, (1, 2))
    (tmp_path / "run" / "seed-2" / "results.json").unlink()
    (run,) = collect([tmp_path / "run"]).runs
    assert [seed.seed for seed in run.seeds] == [1, 2]
    assert run.mean("train_seconds") == 90


def test_names_are_as_short_as_they_can_be() -> None:
    folders = [Path("/a/b/one"), Path("/a/c/one"), Path("/a/c/two")]
    assert short_names(folders) == ["b/one", "c/one", "two"]


def test_a_number_is_a_finite_one() -> None:
    values = json.loads('{"a": {"b": 1, "c": true, "d": NaN, "e": "1"}}')
    found = [number(values, "a", key) for key in "bcdef"]
    assert found == [1.0, None, None, None, None]
    assert number(values, "a", "b", "c") is None


def test_a_pretraining_and_a_run_from_scratch_are_known(tmp_path: Path) -> None:
    write_run(tmp_path / "s", "classes", {"accuracy": 0.5}, class_rows(1, 0.5), encoder="none")
    told = {"task": "pretrain", "split": "validation", "metrics": {"perplexity": 3.0}, "seed": 1}
    write_json(tmp_path / "p" / "results.json", told)
    (tmp_path / "p" / "metrics.jsonl").write_text('{"step": 1}\n')
    runs = {run.name: run for run in collect([tmp_path]).runs}
    assert runs["s"].from_scratch
    assert runs["p"].models_language
    assert runs["p"].task == "pretrain"


def test_a_run_that_has_just_begun_is_told_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: made/classes\n")
    with held(tmp_path):
        found = collect([tmp_path])
    assert not found.runs
    assert [problem.what for problem in found.problems] == [
        "it is running, and has logged nothing yet"
    ]
    (problem,) = collect([tmp_path]).problems
    assert problem.what == "it contains neither results nor metrics"


def test_states_are_those_of_the_list_of_runs(tmp_path: Path) -> None:
    write_class_run(tmp_path / "done", 0.8, (1, 2))
    write_class_run(tmp_path / "begun", 0.8, (1, 2))
    (tmp_path / "begun" / "results.json").unlink()
    write_class_run(tmp_path / "degenerate", 0.8, (1, 2), collapsed=True)
    write_class_run(tmp_path / "running", 0.8, (1, 2))
    with held(tmp_path / "running"):
        states = {run.name: run.state for run in collect([tmp_path]).runs}
        listed = {run.name: run.state for run in list_runs(tmp_path).runs}
    assert states == listed
    assert set(states.values()) == {"done", "interrupted", "degenerate", "running"}


def write_tree(root: Path) -> None:
    """Runs at several depths, of one and several seeds, ended or not, beside what is no run."""
    one_seed(root / "one")
    one_seed(root / "a" / "b" / "c" / "deep")
    write_class_run(root / "several", 0.8, (1, 2))
    write_class_run(root / "results-alone", 0.8, (1, 2, 3))
    for seed in (1, 2, 3):
        shutil.rmtree(root / "results-alone" / f"seed-{seed}")
    for seed in (1, 2):
        place = root / "one-by-one" / f"seed-{seed}"
        write_run(place, "classes", {"accuracy": 0.5}, class_rows(seed, 0.5), seed)
    write_class_run(root / "interrupted", 0.8, (1, 2))
    (root / "interrupted" / "results.json").unlink()
    (root / "interrupted" / "seed-2" / "results.json").unlink()
    one_seed(root / "begun")
    (root / "begun" / "results.json").unlink()
    (root / "foreign" / "notes").mkdir(parents=True)
    (root / "foreign" / "notes" / "results.csv").write_text("not ours\n")


def ended(run: ReportedRun) -> list[int]:
    return [] if run.group is None else list(run.group.seeds)


def test_a_report_and_the_list_of_runs_find_the_same(tmp_path: Path) -> None:
    write_tree(tmp_path)
    listed, found = list_runs(tmp_path), collect([tmp_path])
    told = {run.folder.path: (run.state, len(ended(run)), run.task) for run in found.runs}
    assert told == {run.folder: (run.state, len(run.seeds), run.task) for run in listed.runs}
    names = {run.name: run.state for run in listed.runs}
    assert names == {
        "a/b/c/deep": "done",
        "begun": "interrupted",
        "interrupted": "interrupted",
        "one": "done",
        "one-by-one": "done",
        "results-alone": "done",
        "several": "done",
    }
    assert listed.problems == []
    assert [problem for problem in found.problems if problem.damaged] == []


def test_a_run_that_a_report_cannot_show_is_named_there(tmp_path: Path) -> None:
    one_seed(tmp_path / "good")
    for name, content in {"bad": "{", "foreign": '{"task": "x"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(content)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.yaml").write_text("task: made/classes\n")
    listed, found = list_runs(tmp_path), collect([tmp_path])
    shown = {run.name for run in found.runs} | {problem.place for problem in found.problems}
    assert shown == {run.name for run in listed.runs} == {"bad", "empty", "foreign", "good"}
    said = {(place.name, what) for place, what in listed.problems}
    assert said == {(name, what) for name, what, damaged in found.problems if name != "empty"}


def test_a_comparison_takes_the_runs_that_have_ended(tmp_path: Path) -> None:
    write_tree(tmp_path)
    group = read_group(tmp_path / "a")
    assert [str(run.folder) for run in group.runs] == [str(tmp_path / "a" / "b" / "c" / "deep")]
    group = read_group(tmp_path / "interrupted")
    assert [str(run.folder) for run in group.runs] == [str(tmp_path / "interrupted" / "seed-1")]
