from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.loggers import Logger
from torch.utils.data import DataLoader

from finetune import tracking
from finetune.tracking import JsonlLogger, TrackingConfig, finish, loggers

SETTINGS = {"seed": 1, "out": Path("runs/a"), "optimizer": {"learning_rate": 1e-4}}


@pytest.fixture(autouse=True)
def _no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "no-config"))


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def records(run_dir: Path) -> list[Any]:
    """Read the finished offline runs of a folder, in the order of their start."""
    return [record for file in sorted(run_dir.glob("wandb/*/*.wandb")) for record in whole(file)]


def whole(file: Path) -> list[Any]:
    """Read a run's file; its writer is another process, which may take a moment to end it."""
    for _ in range(200):
        found = list(parse(file.read_bytes()))
        if found and found[-1].HasField("exit"):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{file} has no end")


def parse(data: bytes) -> Iterator[Any]:
    """Read a .wandb file: a LevelDB log of protocol buffers, after seven bytes of its own."""
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    at, record, block = 7, b"", 32768
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4) and at <= len(data):  # whole, or the last part
            yield internal.Record.FromString(record)
            record = b""


def items(message: Any) -> dict[str, Any]:
    return {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in message}


def history(run_dir: Path) -> list[dict[str, Any]]:
    rows = [items(r.history.item) for r in records(run_dir) if r.HasField("history")]
    return [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows]


def run_record(run_dir: Path) -> Any:
    return next(r.run for r in records(run_dir) if r.HasField("run"))


def log_run(run_dir: Path, steps: range, *, resume: bool = False, **names: Any) -> list[Logger]:
    opened = loggers(TrackingConfig(), run_dir, SETTINGS, resume=resume, **names)
    for step in steps:
        for logger in opened:
            logger.log_metrics({"train/loss": 1 / (1 + step), "epoch": step // 4}, step)
    return opened


def test_a_step_is_a_line_with_step_and_epoch_first(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path)
    logger.log_metrics({"train/loss": 0.1, "epoch": 0}, 10)
    logger.log_metrics({"val/loss": 0.2, "epoch": 0}, 10)
    logger.log_metrics({"train/loss": 1 / 3, "epoch": 1}, 20)
    assert lines(tmp_path) == [
        {"step": 10, "epoch": 0, "train/loss": 0.1, "val/loss": 0.2},
        {"step": 20, "epoch": 1, "train/loss": 1 / 3},
    ]
    assert [*lines(tmp_path)[0]] == ["step", "epoch", "train/loss", "val/loss"]


def test_later_value_of_a_step_stands_even_if_shorter(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path)
    logger.log_metrics({"train/loss": 0.123456789}, 1)
    logger.log_metrics({"train/loss": 0.5}, 1)
    assert lines(tmp_path) == [{"step": 1, "train/loss": 0.5}]


def test_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path)
    for step in range(3):
        logger.log_metrics({"a": 1}, step)
        assert len(lines(tmp_path)) == step + 1  # nothing is kept back for a close


def test_floats_are_exact_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    value = torch.tensor(0.1)
    JsonlLogger(tmp_path).log_metrics(
        {"a": value, "b": float("nan"), "c": float("-inf"), "d": 1e-300, "n": 3},  # type: ignore[dict-item]
        0,
    )
    row = lines(tmp_path)[0]
    assert row == {"step": 0, "a": value.item(), "b": None, "c": None, "d": 1e-300, "n": 3}
    assert isinstance(row["n"], int)


def test_resume_writes_no_step_twice(tmp_path: Path) -> None:
    first = JsonlLogger(tmp_path)
    for step in range(10, 60, 10):
        first.log_metrics({"train/loss": step}, step)
    second = JsonlLogger(tmp_path, resume=True)
    second.log_metrics({"val/loss": 0.5}, 30)  # the checkpoint was made at step 30
    second.log_metrics({"train/loss": 40.5}, 40)
    assert lines(tmp_path) == [
        {"step": 10, "train/loss": 10},
        {"step": 20, "train/loss": 20},
        {"step": 30, "train/loss": 30, "val/loss": 0.5},
        {"step": 40, "train/loss": 40.5},
    ]


def test_resume_between_logged_steps_keeps_the_earlier_ones(tmp_path: Path) -> None:
    first = JsonlLogger(tmp_path)
    first.log_metrics({"a": 1}, 10)
    first.log_metrics({"a": 2}, 20)
    JsonlLogger(tmp_path, resume=True).log_metrics({"a": 3}, 15)
    assert [row["step"] for row in lines(tmp_path)] == [10, 15]


def test_resume_drops_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "a": 1}\n{"step": 20, "a"')
    JsonlLogger(tmp_path, resume=True).log_metrics({"a": 2}, 20)
    assert lines(tmp_path) == [{"step": 10, "a": 1}, {"step": 20, "a": 2}]


def test_new_run_starts_an_empty_file_and_resume_without_one_too(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "a": 1}\n')
    JsonlLogger(tmp_path)
    assert lines(tmp_path) == []
    (tmp_path / "metrics.jsonl").unlink()
    JsonlLogger(tmp_path, resume=True).log_metrics({"a": 1}, 5)
    assert lines(tmp_path) == [{"step": 5, "a": 1}]


class Toy(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss: torch.Tensor = self.layer(batch).square().mean()
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_lightning_writes_through_it(tmp_path: Path) -> None:
    opened = loggers(TrackingConfig(wandb=False), tmp_path, SETTINGS)
    trainer = Trainer(
        max_epochs=1,
        logger=opened,
        log_every_n_steps=2,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Toy(), DataLoader(torch.ones(4, 1)))  # type: ignore[arg-type]
    assert [sorted(row) for row in lines(tmp_path)] == [["epoch", "step", "train/loss"]] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_no_wandb_where_it_is_not_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(loggers(TrackingConfig(wandb=False), tmp_path, {})) == 1
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert len(loggers(TrackingConfig(), tmp_path, {})) == 1


def test_machine_without_wandb_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking.importlib.util, "find_spec", lambda name: None)
    with caplog.at_level(logging.INFO):
        opened = loggers(TrackingConfig(), tmp_path, {})
    assert [type(logger) for logger in opened] == [JsonlLogger]
    assert caplog.messages == [
        f"wandb is not installed; metrics go to {tmp_path / 'metrics.jsonl'} only"
    ]
    finish(opened, {"metrics": {}})


def test_offline_run_reads_back(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir = tmp_path / "seed-1"
    opened = log_run(run_dir, range(0, 8, 2), group="glue/cola · tiny", tags=["glue", "glue"])
    for logger in opened:
        logger.log_metrics({"val/matthews": 0.25}, 6)
    results = {"task": "glue/cola", "metrics": {"matthews": 0.25}, "seed": 1}
    finish(opened, results)

    run = run_record(run_dir)
    assert (run.project, run.display_name, run.run_group) == (
        "finetune",
        "seed-1",
        "glue/cola · tiny",
    )
    assert list(run.tags) == ["glue"]
    config = items(run.config.update)
    assert config["seed"] == 1
    assert config["out"] == "runs/a"
    assert config["optimizer"] == {"learning_rate": 1e-4}
    metrics = [r.metric for r in records(run_dir) if r.HasField("metric")]
    assert [(m.name or m.glob_name, m.step_metric) for m in metrics] == [
        ("step", ""),
        ("*", "step"),
    ]
    assert history(run_dir) == [
        {"step": 0, "epoch": 0, "train/loss": 1.0},
        {"step": 2, "epoch": 0, "train/loss": 1 / 3},
        {"step": 4, "epoch": 1, "train/loss": 0.2},
        {"step": 6, "epoch": 1, "train/loss": 1 / 7},
        {"step": 6, "val/matthews": 0.25},
    ]
    summary: dict[str, Any] = {}
    for record in records(run_dir):
        summary |= items(record.summary.update)
    assert {name: summary[name] for name in results} == results
    assert [r.exit.exit_code for r in records(run_dir) if r.HasField("exit")] == [0]


def test_runs_in_one_process_do_not_merge(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    one = log_run(tmp_path / "one", range(2))
    two = log_run(tmp_path / "two", range(3))  # while the first is still open
    finish(one)
    finish(two, failed=True)
    assert [row["step"] for row in history(tmp_path / "one")] == [0, 1]
    assert [row["step"] for row in history(tmp_path / "two")] == [0, 1, 2]
    assert run_record(tmp_path / "one").run_id != run_record(tmp_path / "two").run_id
    assert [r.exit.exit_code for r in records(tmp_path / "two") if r.HasField("exit")] == [1]


def test_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    finish(log_run(tmp_path, range(1)))
    first = run_record(tmp_path).run_id
    finish(log_run(tmp_path, range(1, 2), resume=True))
    assert {r.run.run_id for r in records(tmp_path) if r.HasField("run")} == {first}
    assert (tmp_path / "wandb" / "run-id").read_text().strip() == first
    finish(log_run(tmp_path, range(1)))
    assert (tmp_path / "wandb" / "run-id").read_text().strip() != first


@pytest.mark.parametrize(
    ("variables", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "k" * 40}, "online"),
        ({"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "online"}, "offline"),  # would ask for a login
        ({"WANDB_MODE": "dryrun"}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
    ],
)
def test_offline_unless_mode_or_login_says_otherwise(
    variables: dict[str, str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert tracking._wandb_mode() == mode


def test_login_in_netrc_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "k" * 40)
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert tracking._wandb_mode() == "online"
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert tracking._wandb_mode() == "offline"


def test_login_that_wandb_keeps_in_its_settings_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    (tmp_path / "settings").write_text("[default]\nbase_url = https://wandb.example.org\n")
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password " + "k" * 40)
    (tmp_path / "netrc").chmod(0o600)
    assert tracking._wandb_mode() == "offline"
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert tracking._wandb_mode() == "online"


def test_unreachable_server_means_offline_and_one_line_and_wandb_comes_late(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = f"""
import sys
from pathlib import Path
from finetune import tracking

assert "wandb" not in sys.modules

tracking._INIT_SECONDS = 1.0
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
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("Weights & Biases")]
    assert len(said) == 1
    assert said[0].startswith("Weights & Biases stays offline: ")
    assert history(tmp_path) == [{"step": step, "train/loss": 1.0} for step in range(2)]
