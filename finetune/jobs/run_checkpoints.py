"""The checkpoints of one training: weights, what they belong to, and the state to resume from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from finetune.checkpoints.folder import save_checkpoint
from finetune.files.sharded import whole_weights, write_parts
from finetune.machine.processes import is_first_process
from finetune.task.interface import Task
from finetune.text.tokenizer.tokenizer import Tokenizer
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.sharding import is_sharded

State = dict[str, Any]


@dataclass(frozen=True)
class Saver:
    """Writes checkpoint folders, each whole or not at all."""

    tokenizer: Tokenizer
    head: Mapping[str, Any]
    """What a checkpoint says of its head."""
    task: Task | None

    def save(
        self,
        folder: Path,
        module: EncoderWithHead,
        state: State | None,
        optimizer: Optimizer | None,
    ) -> None:
        """Write a checkpoint; of a sharded module all processes must do so.

        Args:
            folder: Where.
            module: With the weights.
            state: What resuming needs; None where weights alone are wanted.
            optimizer: Over the weights; needed of a sharded module.
        """
        if not is_sharded(module):
            self._write(folder, module, module, state)
            return
        weights = whole_weights(module) if state is None or state["finished"] else None
        write = None
        if state is not None:
            assert optimizer is not None
            write = partial(write_parts, module=module, optimizer=optimizer)
        if is_first_process():
            self._write(folder, module, weights, state, write)
        elif write is not None:
            write(None)

    def _write(
        self,
        folder: Path,
        module: EncoderWithHead,
        weights: EncoderWithHead | Mapping[str, Tensor] | None,
        state: State | None,
        write_more: Callable[[Path], Mapping[str, str]] | None = None,
    ) -> None:
        save_checkpoint(
            folder,
            weights,
            self.tokenizer,
            encoder_config=module.encoder.config,
            head=self.head,
            task=self.task.name if self.task else None,
            labels=tuple(self.task.labels) if self.task else (),
            decision=getattr(module, "decision", None),
            trainer_state=state,
            write_more=write_more,
        )
