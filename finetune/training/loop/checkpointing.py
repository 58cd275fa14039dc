"""When checkpoints are written: the last state at intervals, the best one after a validation.

A state is always written between two batches, after any validation that was due, so that resuming
never has to guess what had been done. Ctrl-C and SIGTERM are waited for until that point too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from finetune.errors import FinetuneError
from finetune.metrics.semantics import goodness
from finetune.training.config import CheckpointConfig
from finetune.training.loop.accumulation import SharedSums
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.progress import RunLength
from finetune.training.loop.resume import (
    TrainingProgress,
    capture_state,
    place_trainer,
    restore_optimizer,
)
from finetune.training.loop.sharding import is_sharded, local
from finetune.training.loop.stopping import Interrupted, StopSignals
from finetune.training.loop.trainer import fraction_done, most_of_all, of_first_process

WriteCheckpoint = Callable[[Path, "dict[str, Any] | None"], None]
"""Writes the weights (and a trainer state, if given) into a folder, whole or not at all."""


class Checkpointer(pl.Callback):
    """Writes `last` and `best`, resumes from `last`, stops early, stops cleanly when asked."""

    def __init__(
        self,
        folder: Path,
        write: WriteCheckpoint,
        length: RunLength,
        config: CheckpointConfig,
        *,
        monitor: str,
        state: dict[str, Any] | None = None,
        micro_batches: int = 1,
    ) -> None:
        """Say where and when.

        Args:
            folder: RUN/checkpoints.
            write: Writes a checkpoint folder.
            length: The run's limit; its clock is part of the state.
            config: Interval and patience.
            monitor: Name of the logged value that chooses the best checkpoint.
            state: What an earlier session of this run wrote, to continue from.
            micro_batches: Of each process in a step, which earlier states counted.
        """
        self.folder, self.write, self.length, self.config = folder, write, length, config
        self.monitor = monitor
        self.state = state
        self.progress = TrainingProgress()
        if state:
            self.progress = TrainingProgress.read(state["standing"], micro_batches)
        self.best: float | None = state["best"] if state else None
        self.bad_validations: int = state["bad_validations"] if state else 0
        self._written_step = self.progress.step
        self._signals = StopSignals(folder / "last")

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Place the trainer where the run stands; remember whom Ctrl-C belongs to."""
        place_trainer(trainer, self.progress)
        # From here on: starting trackers and processes is no training.
        self.length.clock.resume(self.state["seconds"] if self.state else 0.0)
        self._signals.remember()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take over Ctrl-C; put back the optimizer's moments and the other callbacks' figures."""
        self._signals.take_over(trainer)
        if trainer.world_size > 1 and trainer.is_global_zero and self.length.total_steps is None:
            clock = self.length.fraction  # of this process for all
            self._shared(trainer).clock = lambda: clock(trainer.global_step)
        if self.state is None:
            return
        restore_optimizer(trainer, self.state, self.folder / "last")
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if callback.state_key in self.state["callbacks"]:
                callback.load_state_dict(self.state["callbacks"][callback.state_key])

    @staticmethod
    def _shared(trainer: pl.Trainer) -> SharedSums:
        module = trainer.lightning_module
        assert isinstance(module, EncoderWithHead)
        return module.step_weights.shared

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The quiet point between two batches: write the state if it is due."""
        if batch_idx % trainer.accumulate_grad_batches:
            return  # gradients of half a step are no part of the state
        asked_by = self._signals.due(trainer, self.progress.step)
        due = self.progress.step - self._written_step >= self.config.checkpoint_every_steps
        if due or asked_by is not None:
            self._write_last(trainer)
        if asked_by is not None:
            raise Interrupted(asked_by, self.folder / "last")

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """Stop at a loss that is no number; on a GPU each look waits, so on logged steps only."""
        if trainer.world_size == 1 and self._looks(loss, pl_module):
            self._check_finite(float(loss.detach()), trainer)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Stop at a loss that is no number in any process, in all of them and with one message."""
        if trainer.world_size > 1 and self._looks(loss := self._shared(trainer).loss, pl_module):
            self._check_finite(float(loss), trainer)

    @staticmethod
    def _looks(loss: torch.Tensor, module: pl.LightningModule) -> bool:
        return loss.device.type == "cpu" or getattr(module, "is_logged_step", True)

    def _check_finite(self, loss: float, trainer: pl.Trainer) -> None:
        if not math.isfinite(loss):
            raise self._diverged(f"the loss is {loss} at step {trainer.global_step + 1}")

    def _diverged(self, what: str) -> FinetuneError:
        checkpoint = (
            "the last good checkpoint is kept" if self._written_step else "none was written"
        )
        return FinetuneError(
            f"{what}: expected a finite number; {checkpoint}; "
            "lower learning_rate, set gradient_clip, or use precision 32-true"
        )

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count the batch with its last micro-batch; stop when the time is over."""
        if (batch_idx + 1) % trainer.accumulate_grad_batches:
            return
        self.progress = self.progress.after_batch(
            trainer.global_step,
            trainer.datamodule.batches_per_epoch,  # type: ignore[attr-defined]
        )
        if fraction_done(trainer, self.length) >= 1:
            trainer.should_stop = True

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the best checkpoint; count validations without a better one."""
        if self.monitor not in trainer.callback_metrics:
            return
        # Of one process: scores that differ in a last bit must not lead to two decisions.
        value = of_first_process(trainer, float(trainer.callback_metrics[self.monitor]))
        if math.isfinite(value) and (
            self.best is None or goodness(self.monitor, value) > goodness(self.monitor, self.best)
        ):
            self.best, self.bad_validations = value, 0
            self._write(trainer, "best", None)
        else:
            self.bad_validations += 1
        if self.config.patience is not None and self.bad_validations >= self.config.patience:
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the final state, marked as finished; stop what follows if that was asked for."""
        self._write_last(trainer, finished=True)
        asked_by = int(most_of_all(trainer, self._signals.number or 0))
        if asked_by:
            raise Interrupted(asked_by, self.folder / "last")

    def _write_last(self, trainer: pl.Trainer, *, finished: bool = False) -> None:
        state = capture_state(
            trainer,
            self.progress,
            best=self.best,
            bad_validations=self.bad_validations,
            seconds=self.length.clock.seconds,
            finished=finished,
            extension=asdict(self.length.extension) if self.length.extension else None,
            callbacks={c.state_key: c.state_dict() for c in trainer.callbacks},  # type: ignore[attr-defined]
        )
        self._write(trainer, "last", state)
        self._written_step = self.progress.step

    def _write(self, trainer: pl.Trainer, name: str, state: dict[str, Any] | None) -> None:
        """Have it written; never over good weights what is no number any more."""
        for weight, tensor in trainer.lightning_module.named_parameters():
            if not local(tensor).isfinite().all():
                raise self._diverged(f"{weight} is not finite after step {self.progress.step}")
        if trainer.is_global_zero or is_sharded(trainer.lightning_module):  # each writes its part
            self.write(self.folder / name, state)
        trainer.strategy.barrier()  # none trains on, or ends the run, before the folder is whole

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give Ctrl-C back."""
        self._signals.give_back()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        """Give Ctrl-C back: Lightning calls no teardown after an error."""
        self._signals.give_back()
