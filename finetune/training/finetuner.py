"""Fine-tuning: encoder and head, judged by the task's metrics (Devlin et al., 2019, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from finetune.encoder import Encoder
from finetune.task import Answer, Example, Task
from finetune.training.module import EncoderWithHead
from finetune.training.optimizer import OptimizerConfig
from finetune.training.schedules import ScheduleConfig

Logits = npt.NDArray[np.float32]


class FineTuner(EncoderWithHead):
    """Encoder and task head.

    A batch has `index` int64 (B,): the examples' numbers in their split, `input_ids` (B, T),
    `token_type_ids` (B, T), `attention_mask` bool (B, T) where some row is padded, and `labels`
    (B,).
    """

    def __init__(
        self,
        encoder: Encoder,
        head: nn.Module,
        task: Task,
        *,
        validation: Mapping[str, Sequence[Example]] | None = None,
        optimizer: OptimizerConfig | None = None,
        schedule: ScheduleConfig | None = None,
        seed: int = 0,
    ) -> None:
        """Put a task's head on an encoder.

        Args:
            encoder: Pretrained or fresh.
            head: Made by `task.head`.
            task: Reads answers off the logits and scores them.
            validation: The examples of each validation split, in the order of the loaders.
            optimizer: Rates and decay.
            schedule: Shape of the rate over the run.
            seed: Keys the dropout of every step.
        """
        super().__init__(encoder, head, optimizer=optimizer, schedule=schedule, seed=seed)
        self.task = task
        self.validation = validation or {}

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits of a batch: (B, C), or (B,) for regression."""
        hidden = self.encoder(batch).last_hidden_state  # (B, T, D)
        logits: Tensor = self.head(hidden, batch.get("attention_mask"))
        return logits

    def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The head's loss."""
        return {"loss": self.head.loss(self(batch), batch["labels"])}  # type: ignore[operator]

    def on_validation_epoch_start(self) -> None:
        """Make room for the logits of each validation split."""
        self._logits: dict[str, list[Tensor]] = {split: [] for split in self.validation}
        self._order: dict[str, list[Tensor]] = {split: [] for split in self.validation}
        self._losses: list[Tensor] = []

    def validation_step(
        self, batch: Mapping[str, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Keep the logits on their device; add up the loss of the first split."""
        split = list(self.validation)[dataloader_idx]
        logits = self(batch)
        self._logits[split].append(logits.float())
        self._order[split].append(batch["index"])
        if dataloader_idx == 0:
            loss: Tensor = self.head.loss(logits, batch["labels"])  # type: ignore[operator]
            self._losses.append(torch.stack([loss, torch.full_like(loss, len(logits))]))

    def on_validation_epoch_end(self) -> None:
        """Log `val/loss`, `val/METRIC` of the first split and `val/SPLIT/METRIC` of others."""
        losses, sizes = torch.stack(self._losses).cpu().double().unbind(1)
        values = {"val/loss": float(losses @ sizes / sizes.sum())}
        for number, (split, examples) in enumerate(self.validation.items()):
            logits = in_order(self._logits[split], self._order[split])
            scores = self.task.score(self.task.answers(logits, examples))
            prefix = f"val/{split}/" if number else "val/"
            values |= {prefix + name: float(value) for name, value in scores.items()}
        self.log_validation(values)


def in_order(logits: Sequence[Tensor], order: Sequence[Tensor]) -> Logits:
    """Put the logits of shuffled batches into the order of their examples.

    Args:
        logits: Of each batch, (B, …).
        order: Example numbers of each batch, int64 (B,).

    Returns:
        Logits of examples 0 … N-1, float32 (N, …).
    """
    numbers = torch.cat(list(order))
    result: Logits = torch.cat(list(logits))[numbers.argsort()].cpu().numpy()
    return result


@torch.no_grad()
def predict(module: FineTuner, loader: DataLoader[dict[str, Tensor]]) -> Logits:
    """Logits of every example of a loader, in the examples' order; in eval mode and full precision.

    Args:
        module: On the device where it is to run.
        loader: Batches with `index`.
    """
    module.eval()
    device = next(module.parameters()).device
    logits, order = [], []
    for batch in loader:
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        logits.append(module(moved).float())
        order.append(moved["index"])
    return in_order(logits, order)


def collapsed(answers: Sequence[Answer]) -> bool:
    """Whether every answer is the same: a run that has learnt nothing from its texts."""
    return len(answers) > 1 and len({str(answer["prediction"]) for answer in answers}) == 1
