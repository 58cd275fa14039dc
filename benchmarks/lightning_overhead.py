"""What Lightning and our callbacks cost: a run's loop beside a bare torch loop.

Both take the same batches, and load, clip and step alike. The run also logs, watches the loss and
counts; its validation and its checkpoints on disk are left out. Rows of `bench.py`.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from contest import TINY, Sentences, classifier, masked_batches, prepare, sentences
from torch.utils.data import Dataset
from turns import Contest, Settings, Turn

from finetune.encoder import Encoder
from finetune.encoder.benchmark import wait_for
from finetune.tracking import JsonlLogger
from finetune.training.config import CheckpointConfig, LoaderConfig, TrainerConfig
from finetune.training.loop.checkpointing import Checkpointer
from finetune.training.loop.data import OrderedData
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.monitor import Monitor
from finetune.training.loop.pretrainer import Pretrainer
from finetune.training.loop.progress import Clock, LengthConfig, RunLength
from finetune.training.loop.trainer import build_trainer, quiet_lightning

SIZE = dataclasses.replace(TINY, vocab_size=8192)
WARM_UP = 5
BATCH = 32
"""Sentences of a step of fine-tuning."""


class Looked(Dataset[Any]):
    """Batches by their numbers."""

    def __init__(self, batches: list[Any]) -> None:
        """Keep them."""
        self.batches = batches

    def __getitem__(self, numbers: Any) -> Any:
        """The batch of a single number."""
        (number,) = numbers
        return self.batches[number]


class Made(OrderedData):
    """Batches that were made beforehand."""

    def __init__(self, batches: list[Any]) -> None:
        """Keep them."""
        super().__init__(LoaderConfig(), seed=0)
        self.batches = batches

    @classmethod
    def masked(cls, batches: int, rows: int, length: int) -> Made:
        """Make batches of masked blocks, as pretraining takes them from a corpus."""
        source = masked_batches(SIZE, rows=rows, length=length, rate=0.15)
        made = [next(source) for _ in range(batches)]
        return cls([one | {"labels": one["labels"].flatten()[one["positions"]]} for one in made])

    def order(self, epoch: int) -> list[Any]:
        """Take the batches as they are."""
        return [np.array([number]) for number in range(len(self.batches))]

    def training_set(self, epoch: int) -> Dataset[Any]:
        """Look up a batch by its number, the only member of its order."""
        return Looked(self.batches)


class Watch(pl.Callback):
    """Takes the time from the first batch after the warm-up to the end."""

    start, seconds = 0.0, 0.0

    def __init__(self, warm_up: int) -> None:
        """Set how many batches do not count."""
        self.warm_up = warm_up

    def on_train_batch_end(self, trainer: Any, module: Any, out: Any, batch: Any, i: int) -> None:
        """Start the clock when warm."""
        if i == self.warm_up - 1:
            self.start = time.perf_counter()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Stop the clock."""
        self.seconds = time.perf_counter() - self.start


CPU = torch.device("cpu")


def bare(
    make: Callable[[], EncoderWithHead], data: OrderedData, device: torch.device = CPU
) -> float:
    """Run the loop that one would write by hand; returns its seconds."""
    module = make().train().to(device)
    optimizer = module.configure_optimizers()
    start = 0.0
    for number, batch in enumerate(data.train_dataloader()):
        if number == WARM_UP:
            start = time.perf_counter()
        moved = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        step: Any = module.training_step(moved, number)
        torch.autograd.backward(step["loss"])
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    wait_for(device)
    return time.perf_counter() - start


def lightning(
    make: Callable[[], EncoderWithHead],
    data: OrderedData,
    folder: Path,
    accelerator: str = "cpu",
    warm_up: int = WARM_UP,
) -> float:
    """Run the loop of a run; returns its seconds."""
    limit = LengthConfig(max_epochs=1)
    length = RunLength(limit, len(data.order(0)), Clock())
    watch = Watch(warm_up)
    checkpointer = Checkpointer(
        folder,
        lambda folder, state: None,
        length,
        CheckpointConfig(checkpoint_every_steps=10**9),
        monitor="val/loss",
    )
    with quiet_lightning(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = build_trainer(
            TrainerConfig(accelerator=accelerator),
            limit,
            callbacks=[Monitor(length, 50, show_progress=False), checkpointer, watch],
            loggers=[JsonlLogger(folder)],
        )
        trainer.fit(make(), datamodule=data)
    return watch.seconds


def pretrainer() -> Pretrainer:
    """Make the net to pretrain."""
    return Pretrainer(Encoder(SIZE.ours()))


def contests(steps: int, rows: int, length: int, examples: int, rounds: int) -> list[Contest]:
    """The loop of a pretraining run and of a fine-tuning run."""
    contestants = {"ours": "lightning_overhead:run", "bare loop": "lightning_overhead:bare_loop"}
    settings: Settings = {"steps": steps, "rows": rows, "length": length, "examples": examples}
    works = {"pretraining": steps, "fine-tuning": examples // BATCH}
    return [
        Contest(
            f"loop of a run, {work}, {SIZE}",
            contestants,
            unit="ms",
            rounds=rounds,
            settings={**settings, "work": work, "counted": count - WARM_UP},
        )
        for work, count in works.items()
    ]


def run(settings: Settings) -> Turn:
    """Make a turn of ours: seconds of a step in the loop of a run."""
    make, data = _work(settings)
    folder = Path(settings["folder"])
    return lambda: lightning(make, data(), folder) / settings["counted"]


def bare_loop(settings: Settings) -> Turn:
    """Make a turn of the bare loop: seconds of a step."""
    make, data = _work(settings)
    return lambda: bare(make, data()) / settings["counted"]


def _work(
    settings: Settings,
) -> tuple[Callable[[], EncoderWithHead], Callable[[], OrderedData]]:
    prepare(settings["threads"])
    if settings["work"] == "pretraining":
        rows, length = settings["rows"], settings["length"]
        return pretrainer, lambda: Made.masked(settings["steps"], rows, length)
    texts = sentences(settings["examples"], SIZE.vocab_size)
    return lambda: classifier(SIZE), lambda: Sentences(texts, BATCH)
