"""A warning when a multiple-choice run learns nothing: its loss sits at that of guessing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch

from finetune.metrics.semantics import chance_level
from finetune.training.loop.accumulation import FILLER

WATCHED_FRACTION = 1 / 3
"""The part of the run whose losses are averaged."""
TOLERANCE = 0.02
"""How far from ln C, as a fraction of it, still counts as guessing."""
FEWEST_BATCHES = 10
"""Losses that are needed for a verdict: the first few are near ln C in every run."""


def at_chance(loss: float, num_choices: int) -> bool:
    """Whether a mean loss is that of one who guesses among the options.

    Args:
        loss: Mean cross-entropy, nats a question.
        num_choices: C.

    Returns:
        True if the loss lies within 2 % of ln C; never for a NaN, nor where there is no choice.
    """
    guessing = chance_level("loss", max(num_choices, 1)) or 0.0
    return guessing > 0 and abs(loss - guessing) <= TOLERANCE * guessing


class ChanceWatch(pl.Callback):
    """Averages the loss over the first third of a run, and warns once if it is that of guessing."""

    def __init__(self, num_choices: int, fraction_done: Callable[[], float]) -> None:
        """Say what guessing is and how far the run has come.

        Args:
            num_choices: C, options of every question.
            fraction_done: Fraction of the run that lies behind, in [0, 1].
        """
        self.num_choices = num_choices
        self.fraction_done = fraction_done
        self._total: torch.Tensor | float = 0.0  # a tensor: summing does not wait for the device
        self._batches = 0
        self._judged = False

    def state_dict(self) -> dict[str, Any]:
        """What has been seen, so that a resumed run judges as the uninterrupted one."""
        return {"total": float(self._total), "batches": self._batches, "judged": self._judged}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what was seen."""
        self._total, self._batches = state_dict["total"], state_dict["batches"]
        self._judged = state_dict["judged"]

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Add a batch; judge when the first third is behind."""
        if self._judged:
            return
        if FILLER not in batch:
            # Lightning divided the loss. Detached: a sum with a graph would keep every batch's.
            self._total = self._total + outputs["loss"].detach() * trainer.accumulate_grad_batches
            self._batches += 1
        if self.fraction_done() >= WATCHED_FRACTION:
            self._judged = True
            self._judge(trainer)

    def _judge(self, trainer: pl.Trainer) -> None:
        if not trainer.is_global_zero or self._batches < FEWEST_BATCHES:
            return
        mean = float(self._total) / self._batches
        if at_chance(mean, self.num_choices):
            warnings.warn(
                f"over the first third of training the loss was {mean:.3f}, that of guessing among "
                f"{self.num_choices} options (ln {self.num_choices} = "
                f"{math.log(self.num_choices):.3f}): nothing is learnt yet; try a lower "
                "learning_rate, a larger warmup_ratio, another seed or a better encoder, or a "
                "larger max_length where much of the passages is trimmed",
                stacklevel=2,
            )
