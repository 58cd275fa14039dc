"""Runs in Weights & Biases, read back from what they write offline."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytorch_lightning.loggers import Logger

from finetune.tracking import (
    Artifact,
    Shown,
    Table,
    TrackingConfig,
    finish,
    loggers,
    plain_name,
    wandb_run,
)
from tests.made import wandb_files as read

SETTINGS = {"seed": 1, "out": Path("runs/a"), "optimizer": {"learning_rate": 1e-4}}
pytest.importorskip("wandb")


def log_run(run_dir: Path, steps: range, *, resume: bool = False, **names: Any) -> list[Logger]:
    opened = loggers(TrackingConfig(), run_dir, SETTINGS, resume=resume, **names)
    for step in steps:
        for logger in opened:
            logger.log_metrics({"train/loss": 1 / (1 + step), "epoch": step // 4}, step)
    return opened


def test_offline_run_reads_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "seed-1"
    opened = log_run(
        run_dir,
        range(0, 8, 2),
        group="glue/cola · tiny",
        tags=["glue", "glue", "x" * 65],
        kind="fine-tune",
    )
    for logger in opened:
        logger.log_metrics({"val/matthews": 0.25}, 6)
    results = {"task": "glue/cola", "metrics": {"matthews": 0.25}, "seed": 1}
    finish(opened, results)

    run = read.run_record(run_dir)
    assert (run.project, run.display_name, run.run_group) == (
        "finetune",
        "seed-1",
        "glue/cola · tiny",
    )
    assert list(run.tags) == ["glue", "x" * 64]
    config = read.items(run.config.update)
    assert config["seed"] == 1
    assert config["out"] == "runs/a"
    assert config["optimizer"] == {"learning_rate": 1e-4}
    assert run.job_type == "fine-tune"
    assert read.definitions(run_dir) == {
        "step": ("", ""),
        "train/loss": ("step", "min"),
        "epoch": ("step", ""),
        "val/matthews": ("step", "max"),
    }
    assert read.history(run_dir) == [
        {"step": 0, "epoch": 0, "train/loss": 1.0},
        {"step": 2, "epoch": 0, "train/loss": 1 / 3},
        {"step": 4, "epoch": 1, "train/loss": 0.2},
        {"step": 6, "epoch": 1, "train/loss": 1 / 7},
        {"step": 6, "val/matthews": 0.25},
    ]
    summary = read.summary(run_dir)
    assert {name: summary[name] for name in results} == results
    assert (summary["best/matthews"], summary["best/headline"]) == (0.25, 0.25)
    assert [r.exit.exit_code for r in read.records(run_dir) if r.HasField("exit")] == [0]


def test_summary_keeps_the_best_of_what_can_be_better(tmp_path: Path) -> None:
    opened = loggers(TrackingConfig(), tmp_path, {})
    for step, value in enumerate((2.0, 1.0, 4.0)):
        names = ("val/loss", "val/matched/f1", "val/loss/head", "perf/padding", "lr/head", "epoch")
        opened[1].log_metrics(dict.fromkeys(names, value), step)
    finish(opened)
    assert read.best(tmp_path) == {
        "step": 2,
        "val/loss": {"min": 1.0},
        "val/matched/f1": {"max": 4.0},
        "val/loss/head": {"max": 4.0},
        "perf/padding": {"mean": pytest.approx(7 / 3)},
        "lr/head": 4.0,
        "epoch": 4.0,
    }


def test_runs_in_one_process_do_not_merge(tmp_path: Path) -> None:
    one = log_run(tmp_path / "one", range(2))
    two = log_run(tmp_path / "two", range(3))  # while the first is still open
    finish(one)
    finish(two, failed=True)
    assert [row["step"] for row in read.history(tmp_path / "one")] == [0, 1]
    assert [row["step"] for row in read.history(tmp_path / "two")] == [0, 1, 2]
    assert read.run_record(tmp_path / "one").run_id != read.run_record(tmp_path / "two").run_id
    assert [r.exit.exit_code for r in read.records(tmp_path / "two") if r.HasField("exit")] == [1]


def test_id_that_an_agent_has_set_is_that_of_one_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_RUN_ID", "ofasweep")
    for name in ("one", "two"):
        finish(log_run(tmp_path / name, range(1)))
    assert read.run_record(tmp_path / "one").run_id == "ofasweep"
    assert read.run_record(tmp_path / "two").run_id != "ofasweep"


def test_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    finish(log_run(tmp_path, range(1)))
    first = read.run_record(tmp_path).run_id
    finish(log_run(tmp_path, range(1, 2), resume=True))
    assert {r.run.run_id for r in read.records(tmp_path) if r.HasField("run")} == {first}
    assert (tmp_path / "wandb" / "run-id").read_text().strip() == first
    finish(log_run(tmp_path, range(1)))
    assert (tmp_path / "wandb" / "run-id").read_text().strip() != first


def test_unreachable_server_means_offline_and_one_line_and_wandb_comes_late(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from finetune import tracking
from finetune.tracking import wandb_run

assert "wandb" not in sys.modules

wandb_run.INIT_SECONDS = 1.0
opened = tracking.loggers(tracking.TrackingConfig(), Path({str(tmp_path)!r}), {{}})
for step in range(2):
    opened[1].log_metrics({{"train/loss": 1.0}}, step)
tracking.finish(opened, {{"task": "glue/cola"}})
"""
    closed_port = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "k" * 40}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **closed_port},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("Weights & Biases")]
    assert len(said) == 1
    assert said[0].startswith("Weights & Biases stays offline: ")
    assert read.history(tmp_path) == [{"step": step, "train/loss": 1.0} for step in range(2)]


def test_table_is_read_back_cell_by_cell(tmp_path: Path) -> None:
    opened = log_run(tmp_path, range(2))
    rows = [["0", "a <b>", 0.5, True], ["1", None, 0.25, False]]
    table = Table("predictions/validation", ["id", "text", "p", "right"], rows)
    counts = Table("confusion/validation", ["Actual", "n"], [["a", 3]], "wandb/confusion_matrix/v1")
    finish(opened, shown=lambda: Shown([table, counts]))
    assert read.table(tmp_path, "predictions/validation") == (list(table.columns), rows)
    assert read.table(tmp_path, "confusion/validation_table") == (["Actual", "n"], [["a", 3]])


def test_artifact_waits_in_the_run_folder_and_its_content_is_its_version(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    kept = tmp_path / "one" / "weights.bin"
    kept.write_bytes(b"12345")
    made = Artifact(
        "encoder-1", "encoder", {"weights.bin": kept}, {"a.json": "{}"}, {"folder": "x"}
    )
    used = dataclasses.replace(made, facts={}, used=True)
    for name, artifact in (("one", made), ("two", used)):
        opened = log_run(tmp_path / name, range(1))
        finish(opened, shown=lambda artifact=artifact: Shown(artifacts=[artifact]))  # type: ignore[misc]
    one = read.artifacts(tmp_path / "one")["encoder"]
    two = read.artifacts(tmp_path / "two")["used encoder"]
    assert (one.name, one.digest) == (two.name, two.digest)
    assert json.loads(one.metadata) == {"folder": "x"}
    places = {entry.path: Path(entry.local_path) for entry in one.manifest.contents}
    assert places["weights.bin"] == kept  # not copied
    assert tmp_path / "one" / "wandb" in places["a.json"].parents
    assert places["a.json"].read_text() == "{}"
    assert "WANDB_DATA_DIR" not in os.environ


def test_what_goes_wrong_with_a_table_is_a_line_and_the_run_ends_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def damaged() -> Shown:
        raise ValueError("no\nsuch file")

    finish(log_run(tmp_path, range(1)), {"task": "a"}, shown=damaged)
    said = [line for line in caplog.messages if line.startswith("Weights & Biases")]
    assert said == [
        "Weights & Biases did not receive all tables and files of the run: no such file"
    ]
    assert read.summary(tmp_path)["task"] == "a"


def test_tables_are_made_only_where_somebody_takes_them(tmp_path: Path) -> None:
    def never() -> Shown:
        raise AssertionError

    finish(loggers(TrackingConfig(wandb=False), tmp_path, {}), {}, shown=never)


@pytest.mark.parametrize(
    ("text", "name"),
    [("runs/a b", "runs-a-b"), ("…", "unnamed"), ("x" * 200, "x" * 128), ("a_b-1.2", "a_b-1.2")],
)
def test_name_of_an_artifact_has_only_what_is_allowed(text: str, name: str) -> None:
    assert plain_name(text) == name


def own_process() -> int:
    """The number of the process that W&B has started for this one."""
    from wandb.sdk import wandb_setup

    connection: Any = wandb_setup.singleton()._connection
    return int(connection._proc._process.pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_run_goes_on_without_the_process_of_wandb(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(wandb_run, "STUCK_SECONDS", 2.0)
    first, second = tmp_path / "first", tmp_path / "second"
    opened = log_run(first, range(2))
    os.kill(own_process(), number)
    for logger in opened:
        logger.log_metrics({"train/loss": 0.5}, 2)
    finish(opened, {"metrics": {"accuracy": 0.5}}, shown=lambda: Shown([], []))
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(said) == 1
    assert said[0].startswith("Weights & Biases failed; the run continues without it: ")
    assert len((first / "metrics.jsonl").read_text().splitlines()) == 3
    finish(log_run(second, range(2)))  # a run that follows has a process again
    assert len(read.history(second)) == 2


def test_a_process_that_wandb_has_lost_is_not_told_in_a_traceback(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from finetune import tracking
from tests.tracking.test_wandb_run import log_run, own_process

opened = log_run(Path({str(tmp_path)!r}), range(2))
os.kill(own_process(), signal.SIGKILL)
tracking.finish(opened, {{"task": "glue/cola"}})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("wandb: ")]  # its own
    assert len(lines) == 1
    assert lines[0].startswith("Weights & Biases failed; the run continues without it: ")
