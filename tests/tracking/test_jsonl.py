"""metrics.jsonl: a line a step, exact, whole, and no step twice."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from torch.utils.data import DataLoader

from finetune.tracking import JsonlLogger, TrackingConfig, loggers


def lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


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
    second = JsonlLogger(tmp_path, resume=True, steps=30)
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
    JsonlLogger(tmp_path, resume=True, steps=12).log_metrics({"a": 3}, 15)
    assert [row["step"] for row in lines(tmp_path)] == [10, 15]


def test_resume_drops_a_line_that_a_crash_cut_off(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "a": 1}\n{"step": 20, "a"')
    JsonlLogger(tmp_path, resume=True, steps=20).log_metrics({"a": 2}, 20)
    assert lines(tmp_path) == [{"step": 10, "a": 1}, {"step": 20, "a": 2}]


def test_a_run_that_goes_on_drops_the_lines_of_steps_it_makes_again(tmp_path: Path) -> None:
    """Also where it logs nothing more: what a killed run had logged last is none of its lines."""
    first = JsonlLogger(tmp_path)
    for step in (10, 20, 30):
        first.log_metrics({"a": step}, step)
    JsonlLogger(tmp_path, resume=True, steps=20)
    assert [row["step"] for row in lines(tmp_path)] == [10, 20]
    JsonlLogger(tmp_path, resume=True)  # killed before its first checkpoint
    assert lines(tmp_path) == []


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
    opened = loggers(TrackingConfig(wandb=False), tmp_path, {})
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


def test_csv_has_a_row_a_step_and_a_column_a_name(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path, as_csv=True)
    logger.log_metrics({"train/loss": 0.5, "epoch": 1}, 10)
    logger.log_metrics({"val/loss": float("nan"), "epoch": 2}, 20)
    logger.close()
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert [*csv.reader(file)] == [
            ["step", "epoch", "train/loss", "val/loss"],
            ["10", "1", "0.5", ""],
            ["20", "2", "", ""],
        ]
