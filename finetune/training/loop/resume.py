"""Where a run stands, as plain data, and how to put a fresh Trainer there.

Lightning's own loop state is not used: after an interruption in mid-epoch its loader has to repeat
or skip batches, and which validation has been run already is guessed. Here a run stands between two
batches, always: (epoch, batches of that epoch behind). The data modules start an epoch at any batch
in O(1), so for Lightning a resumed epoch is simply a shorter one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from finetune.files.sharded import read_optimizer, spread_optimizer
from finetune.training.loop.sharding import is_sharded


@dataclass
class TrainingProgress:
    """The place of a run between two batches; the same for any number of processes.

    A batch is that of all processes with all their micro-batches: the examples of one step.
    """

    epoch: int = 0
    """Epochs that are complete."""
    batch: int = 0
    """Batches of the current epoch that are behind."""
    step: int = 0
    """Optimizer steps since the start of the run."""

    @classmethod
    def read(cls, state: dict[str, int], micro_batches: int) -> TrainingProgress:
        """What a checkpoint says; earlier ones counted the micro-batches of a process.

        Args:
            state: Its `standing`.
            micro_batches: Of each process in a step.
        """
        counts = dict(state)
        if counts.pop("batches", counts["step"]) > counts["step"]:
            counts["batch"] = -(-counts["batch"] // micro_batches)
        return cls(**counts)

    def after_batch(self, step: int, batches_per_epoch: int) -> TrainingProgress:
        """The place one batch on; the end of an epoch is the start of the next."""
        ended = self.batch + 1 >= batches_per_epoch
        return TrainingProgress(
            epoch=self.epoch + ended,
            batch=0 if ended else self.batch + 1,
            step=step,
        )


def place_trainer(trainer: pl.Trainer, progress: TrainingProgress) -> None:
    """Set a fresh Trainer's counters, so that its epochs, steps and intervals continue from there.

    Args:
        trainer: Before its loop has begun.
        progress: Where the run stands.
    """
    fit = trainer.fit_loop
    epochs = fit.epoch_progress
    for counts in (epochs.current, epochs.total):
        counts.ready = counts.completed = progress.epoch
        counts.started = counts.processed = progress.epoch  # type: ignore[attr-defined]
    loop = fit.epoch_loop
    loop._batches_that_stepped = progress.step  # the step that Lightning's loggers write
    micro_batches = progress.step * trainer.accumulate_grad_batches
    batches = loop.batch_progress.total
    batches.ready = batches.completed = micro_batches
    batches.started = batches.processed = micro_batches  # type: ignore[attr-defined]
    steps = loop.automatic_optimization.optim_progress.optimizer.step.total
    steps.ready = steps.completed = progress.step


def capture_state(trainer: pl.Trainer, progress: TrainingProgress, **more: Any) -> dict[str, Any]:
    """All that resuming needs beyond the weights: plain numbers, strings and tensors.

    Args:
        trainer: Stands between two batches.
        progress: Its place.
        more: The caller's own state (best value so far, clock).

    Returns:
        A dict that `torch.load(weights_only=True)` reads.
    """
    sharded = is_sharded(trainer.lightning_module)
    return {
        "standing": asdict(progress),  # so named in every checkpoint since 0.1
        # Of a sharded module each process writes its part (`finetune.files.sharded`).
        "optimizer": None if sharded else trainer.optimizers[0].state_dict(),
        "precision": trainer.precision_plugin.state_dict(),
        **more,
    }


def restore_optimizer(trainer: pl.Trainer, state: dict[str, Any], folder: Path) -> None:
    """Put back the moments (and the gradient scaler's scale under fp16).

    Args:
        trainer: Its module may be sharded or whole, whatever it was when the state was saved.
        state: What `capture_state` gave.
        folder: Its checkpoint.
    """
    module, optimizer = trainer.lightning_module, trainer.optimizers[0]
    if state["optimizer"] is None:
        read_optimizer(folder, module, optimizer)
    elif is_sharded(module):
        spread_optimizer(state["optimizer"], module, optimizer)
    else:
        optimizer.load_state_dict(state["optimizer"])
    if state["precision"]:
        trainer.precision_plugin.load_state_dict(state["precision"])
