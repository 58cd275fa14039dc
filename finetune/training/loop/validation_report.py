"""A line at every validation, for people: losses, the metric, the best so far, the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl

from finetune.metrics.semantics import label, meaning, shown
from finetune.training.loop.checkpointing import Checkpointer
from finetune.training.loop.monitor import Monitor
from finetune.training.loop.progress import RunLength
from finetune.training.loop.progress_bar import clock_text, position, seconds_left


class ValidationReport(pl.Callback):
    """Says how each validation went, and at the end which one was best.

    It is called after the Checkpointer, which decides what is best.
    """

    def __init__(
        self,
        length: RunLength,
        monitor: Monitor,
        checkpointer: Checkpointer,
        say: Callable[[str], None],
        *,
        runs_to_come: int = 0,
    ) -> None:
        """Say nothing yet.

        Args:
            length: The run's limit.
            monitor: Has the training loss.
            checkpointer: Has the best value so far.
            say: Prints a line.
            runs_to_come: Seeds that are trained after this one, each about as long.
        """
        self.length, self.monitor, self.checkpointer = length, monitor, checkpointer
        self.say, self.runs_to_come = say, runs_to_come
        self.best_at: str | None = None
        """Where in the run the best checkpoint was written; None before there is one."""
        self._start = (0.0, 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the best checkpoint was written."""
        return {"best_at": self.best_at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take that over."""
        self.best_at = state_dict["best_at"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock by which the time left is estimated."""
        self._start = (time.monotonic(), trainer.global_step)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say how it went."""
        loss = self.monitor.loss_since_validation()  # which all processes must ask
        if not trainer.is_global_zero or self.checkpointer.monitor not in trainer.callback_metrics:
            return
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        here = position(self.length, trainer.global_step)
        if self.checkpointer.bad_validations == 0:
            self.best_at = here
        parts = [] if loss is None else [f"train loss {loss:.4f}"]
        if self.checkpointer.monitor != "val/loss" and "val/loss" in values:
            parts.append(f"validation loss {values['val/loss']:.4f}")
        parts.append(f"{self._metric(values[self.checkpointer.monitor])} ({self._best()})")
        self.say(f"{here}: {', '.join([*parts, *self._left(trainer.global_step)])}")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say which checkpoint is the best."""
        best = self.checkpointer.best
        if trainer.is_global_zero and best is not None and self.best_at is not None:
            self.say(f"best checkpoint: {self.best_at}, {self._metric(best)}")

    def _metric(self, value: float) -> str:
        name = self.checkpointer.monitor.removeprefix("val/")
        title = "validation loss" if name == "loss" else label(name)
        return f"{title} {shown(name, value)}{' %' if meaning(name).percent else ''}"

    def _best(self) -> str:
        best, name = self.checkpointer.best, self.checkpointer.monitor.removeprefix("val/")
        if best is None:
            return "none is a number so far"
        if self.checkpointer.bad_validations == 0:
            return "best so far"
        where = f" at {self.best_at.partition('/')[0]}" if self.best_at else ""
        return f"best {shown(name, best)}{where}"

    def _left(self, step: int) -> list[str]:
        started, first = self._start
        elapsed = time.monotonic() - started
        rate = (step - first) / elapsed if elapsed > 0 else 0.0
        left = seconds_left(self.length, step, rate)
        if left is None or (left < 1 and not self.runs_to_come):
            return []
        if not self.runs_to_come:
            return [f"{clock_text(left)} left"]
        whole = left + self.runs_to_come * (self.length.clock.seconds + left)
        return [f"{clock_text(left)} left, {clock_text(whole)} with the seeds to come"]
