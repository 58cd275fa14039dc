"""The list of runs below a folder: what each is for, what came out, how it stands."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from finetune.errors import ConfigError
from finetune.runs.folder import RunFolder
from finetune.runs.listing import ListedRun, Listing, list_runs
from finetune.runs.lock import held
from finetune.runs.results import over_seeds
from finetune.training.loop.stopping import Interrupted


def result(seed: int = 1, score: float = 0.5, **more: Any) -> dict[str, Any]:
    return {
        "task": "glue/sst2",
        "split": "validation",
        "metrics": {"accuracy": score, "f1": 0.1},
        "seed": seed,
        "train_seconds": 90.0,
        **more,
    }


def make(folder: Path, results: object = None, step: int | None = None, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config or {"task": "glue/sst2"}))
    if results is not None:
        text = results if isinstance(results, str) else json.dumps(results)
        (folder / "results.json").write_text(text)
    if step is not None:
        lines = [json.dumps({"step": number, "train/loss": 1.0}) for number in range(step + 1)]
        (folder / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 99')  # cut off
    return folder


def only(place: Path) -> ListedRun:
    found = list_runs(place)
    assert found.problems == []
    (run,) = found.runs
    return run


def test_a_run_that_has_ended_is_told_with_its_first_metric(tmp_path: Path) -> None:
    make(tmp_path / "a" / "b", result(score=0.75), step=7)
    run = only(tmp_path)
    assert (run.name, run.task, run.state) == ("a/b", "glue/sst2", "done")
    assert (run.metric, run.score, run.deviation) == ("accuracy", 0.75, None)
    assert (run.seeds, run.planned, run.minutes, run.step) == ((1,), 1, 1.5, None)
    assert json.loads(json.dumps(run.as_json()))["folder"] == str(tmp_path / "a" / "b")


def test_a_run_has_its_encoder_and_the_date_of_its_end(tmp_path: Path) -> None:
    end = "2026-11-29T06:00:00+00:00"
    make(tmp_path / "ended", result(encoder="runs/tiny", finished=end))
    make(tmp_path / "begun", task="glue/sst2", encoder_from="none")
    found = {run.name: run for run in list_runs(tmp_path).runs}
    assert (found["ended"].encoder, found["ended"].date) == ("runs/tiny", end)
    assert found["begun"].encoder == "none"
    os.utime(tmp_path / "begun" / "config.yaml", (0, 1_700_000_000))
    assert datetime.fromisoformat(str(only(tmp_path / "begun").date)).timestamp() == 1_700_000_000


def test_failed_stopped_and_searched_runs_are_told_apart(tmp_path: Path) -> None:
    folder = RunFolder(make(tmp_path / "run"))
    with contextlib.suppress(ConfigError), folder.log():
        raise ConfigError("no such thing")
    assert (only(folder.path).state, only(folder.path).error) == (
        "failed",
        "ConfigError: no such thing",
    )
    with contextlib.suppress(Interrupted), folder.log():
        raise Interrupted(signal.SIGTERM, folder.path)
    assert (only(folder.path).state, only(folder.path).error) == ("interrupted", None)
    folder.rate_curve_file.write_text("{}")
    assert only(folder.path).state == "rate-search"


def test_seeds_are_one_run(tmp_path: Path) -> None:
    runs = [result(1, 0.5), result(2, 0.7, collapsed=True)]
    make(tmp_path / "run", over_seeds(runs), seeds=[1, 2], task="glue/sst2")
    for one in runs:
        make(tmp_path / "run" / f"seed-{one['seed']}", one)
    run = only(tmp_path)
    assert (run.state, run.seeds, run.degenerate) == ("degenerate", (1, 2), (2,))
    assert run.score == pytest.approx(0.6)
    assert run.deviation == pytest.approx(0.1 * 2**0.5)
    assert run.minutes == 3


def test_seeds_that_have_ended_count_before_the_others_have(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", seeds=[1, 2, 3], task="glue/sst2")
    make(folder / "seed-1", result(1, 0.5))
    make(folder / "seed-2", step=40)
    run = only(tmp_path)
    assert (run.state, run.seeds, run.planned, run.step) == ("interrupted", (1,), 3, 40)
    with held(folder / "seed-2"):
        assert only(tmp_path).state == "running"
    assert only(tmp_path).state == "interrupted"


def test_seeds_that_were_made_one_by_one_are_a_run_that_has_ended(tmp_path: Path) -> None:
    """A job a seed, each with `--out run/seed-N`: there is nothing above them."""
    for seed in (1, 2):
        make(tmp_path / "run" / f"seed-{seed}", result(seed, 0.5), step=7)
    (tmp_path / "run" / "seed-1.log").write_text("what a scheduler wrote\n")
    run = only(tmp_path)
    assert (run.name, run.state, len(run.seeds), run.planned, run.step) == (
        "run",
        "done",
        2,
        2,
        None,
    )
    make(tmp_path / "run" / "seed-3", step=3, task="glue/sst2")
    assert (only(tmp_path).state, only(tmp_path).planned) == ("interrupted", 3)


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"task": "glue/sst2", "max_length": 128}, "glue/sst2"),
        ({"masks": {}, "vocabulary": {}}, "pretrain"),
        ({"masks": {}, "task": "glue/sst2"}, "adapt glue/sst2"),
        ({"masks": {}, "corpus": ["x"]}, "adapt"),
    ],
)
def test_a_run_that_has_not_ended_is_known_by_its_settings(
    config: dict[str, Any], task: str, tmp_path: Path
) -> None:
    make(tmp_path / "run", **config)
    assert only(tmp_path).task == task
    with held(tmp_path / "run"):
        assert only(tmp_path).state == "running"


def test_the_folder_itself_may_be_a_run(tmp_path: Path) -> None:
    make(tmp_path / "run", result())
    assert only(tmp_path / "run").name == "."


def test_runs_come_by_task_and_name_and_each_once(tmp_path: Path) -> None:
    make(tmp_path / "b", result())
    make(tmp_path / "a", result())
    make(tmp_path / "c", result(task="glue/cola"))
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / ".hidden").mkdir()
    make(tmp_path / ".hidden" / "d", result())
    assert [run.name for run in list_runs(tmp_path).runs] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        ("{", "results.json: expected JSON, got"),
        ("[1]", "results.json: expected results by name, got list"),
        ('{"task": "x"}', "expected results with task, split, metrics and seed, got no split"),
        ('{"metrics": {}, "seeds": [1], "runs": [1]}', "metrics and seed, got no task"),
        ('{"metrics": {}, "seeds": [1], "runs": []}', "under 'runs', got none"),
        (json.dumps(result(score=math.nan)), "expected a number as accuracy, got nan"),
        (json.dumps(result() | {"metrics": {"accuracy": "high"}}), "a number as accuracy, got"),
    ],
)
def test_a_damaged_folder_is_named_and_the_others_are_listed(
    results: str, problem: str, tmp_path: Path
) -> None:
    make(tmp_path / "bad", results)
    make(tmp_path / "good", result())
    found: Listing = list_runs(tmp_path)
    assert {run.name: run.state for run in found.runs} == {"bad": "damaged", "good": "done"}
    assert problem in str(found.runs[0].error)
    ((place, what),) = found.problems
    assert place == tmp_path / "bad"
    assert problem in what
    assert "\n" not in what


def test_damaged_settings_and_metrics_are_named(tmp_path: Path) -> None:
    (make(tmp_path / "a") / "config.yaml").write_text("{")
    (make(tmp_path / "b") / "config.yaml").write_text("- 1")
    (make(tmp_path / "c") / "metrics.jsonl").write_text("nonsense\n")
    assert {run.name: run.state for run in list_runs(tmp_path).runs} == dict.fromkeys(
        "abc", "damaged"
    )
    problems = {place.name: what for place, what in list_runs(tmp_path).problems}
    assert "not readable as YAML" in problems["a"]
    assert "expected settings by name, got list" in problems["b"]
    assert problems.keys() == {"a", "b", "c"}


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = list_runs(tmp_path / "none")
    assert found.runs == []
    assert "FileNotFoundError" in found.problems[0][1]
