"""Rows of a batch that follow streams of text, and what each row remembers of its own.

The blocks of a corpus are divided into as many streams as a batch has rows, and row b of the
batches reads stream b in order: what it has read last comes just before what it reads next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytorch_lightning as pl
import torch

from finetune.encoder.memory import Memory
from finetune.training.loop.accumulation import FILLER
from finetune.training.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from collections.abc import Mapping

Indices = npt.NDArray[np.int64]


def stream_batches(count: int, rows: int) -> list[Indices]:
    """Batches of blocks whose rows follow streams; where some end before others, the last is short.

    >>> [batch.tolist() for batch in stream_batches(8, 3)]
    [[0, 3, 6], [1, 4, 7], [2, 5]]

    Args:
        count: Blocks.
        rows: Of a batch.
    """
    streams = np.array_split(np.arange(count), min(rows, count) or 1)  # the first are the longest
    return [
        np.array([stream[step] for stream in streams if len(stream) > step])
        for step in range(len(streams[0]))
    ]


def divided(batch: Indices, rows: int, parts: int) -> list[Indices]:
    """Divide a batch so that a row is in the same part of each batch, also of a short one.

    Args:
        batch: Its blocks, in the order of the rows.
        rows: Of a whole batch.
        parts: How many there are to be.
    """
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(rows), parts)])
    return np.split(batch, np.minimum(ends[:-1], len(batch)))


class StreamMemory(pl.Callback):
    """What each row of a batch remembers between the steps of a run; an epoch starts without.

    It is part of the run's state: a resumed run goes on with the same numbers, also with another
    number of processes.
    """

    def __init__(self, size: int) -> None:
        """Start without a past.

        Args:
            size: N, tokens that are remembered.
        """
        self.size = size
        self._parts: dict[int, Memory] = {}
        self._ranks = ALONE
        self._micro_batches: int | None = None
        self._saved: list[torch.Tensor] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Learn which rows this process computes."""
        self._ranks = Ranks(trainer.global_rank, trainer.world_size)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget, but in an epoch that is taken up in the middle."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self._micro_batches = data.config.micro_batches if data else 1
        self._parts = {}
        if data and self._saved and data.behind(trainer.current_epoch):
            self._take_up(pl_module.device)
        self._saved = []

    def _take_up(self, device: torch.device) -> None:
        count = self._ranks.size * (self._micro_batches or 1)
        rows = np.arange(len(self._saved[0]))
        for part, own in enumerate(np.array_split(rows, count)):
            if part % self._ranks.size == self._ranks.rank and len(own):
                memory = Memory(self.size)
                memory.states = {
                    boundary: states[torch.from_numpy(own)].to(device)
                    for boundary, states in enumerate(self._saved)
                }
                self._parts[part] = memory

    def of(self, batch: Mapping[str, Any], batch_idx: int) -> Memory | None:
        """What the rows of a batch remember; None outside of a training, and of a filler."""
        if self._micro_batches is None or FILLER in batch:
            return None
        part = self._ranks.rank + batch_idx % self._micro_batches * self._ranks.size
        return self._parts.setdefault(part, Memory(self.size))

    def state_dict(self) -> dict[str, Any]:
        """The states of all rows at each boundary, of all processes, which must all ask."""
        own = {
            part: [memory.states[boundary].cpu() for boundary in sorted(memory.states)]
            for part, memory in self._parts.items()
        }
        parts = {part: kept for one in self._ranks.gathered(own) for part, kept in one.items()}
        in_order = [parts[part] for part in sorted(parts)]
        return {"states": [torch.cat(rows) for rows in zip(*in_order, strict=True)]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave; it is read when the epoch is taken up."""
        self._saved = state_dict["states"]
