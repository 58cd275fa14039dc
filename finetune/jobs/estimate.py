"""About how long a run will take and how much memory it needs, measured on a few of its batches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from finetune.encoder.benchmark import peak_gib, wait_for
from finetune.jobs.caching import as_trained
from finetune.jobs.preparation import Preparation
from finetune.training.config import TrainerConfig
from finetune.training.loop.data import OrderedData
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.progress import LengthConfig
from finetune.training.ranks import pick_device

BATCHES, SECONDS = 8, 3.0
"""Batches that are tried at most, and seconds after which no other one is begun."""
MOMENTS = 8
"""Bytes that AdamW keeps of a parameter: two float32 numbers."""


@dataclass(frozen=True)
class Estimate:
    """What a run will need."""

    seconds: float
    peak_gib: float

    def __str__(self) -> str:
        """In words."""
        return f"about {_duration(self.seconds)} and {self.peak_gib:.1f} GiB of memory"


def batch_cost(
    module: EncoderWithHead, data: OrderedData, trainer: TrainerConfig
) -> tuple[float, float]:
    """Train on parts of a few batches without a step, all parameters trainable.

    Returns:
        Mean seconds in which the processes compute a batch, and the most memory in GiB, optimizer
        included. On a CPU these are seconds of the processor, as on a machine that does nothing
        else.
    """
    device = pick_device(trainer.accelerator)
    # This thread takes part in all that torch computes, whatever the number of threads.
    now = time.thread_time if device.type == "cpu" else time.perf_counter
    module.to(device).train()
    order = data.order(0)
    chosen = [order[number * len(order) // BATCHES] for number in range(BATCHES)]
    times: list[float] = []
    begun = time.perf_counter()
    micro_batches = data.config.micro_batches
    first = slice(0, 1)  # the parts of a batch take about as long
    for batch in data.parts_loader(0, trainer.devices * micro_batches, chosen, first):
        if times and time.perf_counter() - begun > SECONDS:
            break
        start = now()
        moved = {name: tensor.to(device) for name, tensor in batch.items()}
        with as_trained(trainer.precision, device):
            outputs: Any = module.training_step(moved, 0)
        outputs["loss"].backward()
        module.zero_grad()
        wait_for(device)
        times.append(now() - start)
    measured = times[1:] or times  # the first one warms up
    weights = sum(parameter.numel() for parameter in module.parameters())
    return micro_batches * sum(measured) / len(measured), peak_gib(
        device
    ) + MOMENTS * weights / 2**30


def estimate_steps(
    module: EncoderWithHead, data: OrderedData, trainer: TrainerConfig, length: LengthConfig
) -> Estimate:
    """Estimate a run that trains all parameters all the time, without its validations."""
    seconds, memory = batch_cost(module, data, trainer)
    if length.max_minutes is not None:
        return Estimate(60 * length.max_minutes, memory)
    batches = length.max_steps or 0
    if length.max_epochs is not None:
        batches = length.max_epochs * data.batches_per_epoch
    return Estimate(batches * seconds, memory)


def estimate_fit(preparation: Preparation) -> Estimate:
    """Estimate a fine-tuning of one seed, with its phases, validations and caches."""
    run, data, module = preparation.run, preparation.data, preparation.module
    limit = run.length.or_default()
    seconds, memory = batch_cost(module, data, run.trainer)
    if limit.max_minutes is not None:
        return Estimate(60 * limit.max_minutes, memory)
    training = [
        (row["steps"][1] - row["steps"][0]) * _fraction(preparation, row["boundary"])
        for row in preparation.plan
    ]
    last, batches = preparation.plan[-1]["steps"][1], data.batches_per_epoch
    validations = last / (run.trainer.validate_every_steps or batches)
    # A pass that only reads costs a third of one that also goes back.
    validation = seconds * batches * _validation_size(preparation) / 3
    total = sum(training) * seconds
    caching = seconds * batches / 3 + validation if preparation.choice else 0.0
    return Estimate(total + validations * validation + caching, memory)


def _fraction(preparation: Preparation, boundary: int) -> float:
    """The arithmetic of a step with a frozen part, as a fraction of one without."""
    module, data = preparation.module, preparation.data
    length = float(data.lengths(data.train_split, training=True).mean())
    rows = preparation.sets.get(data.train_split)
    cached = [depth for chosen, depth in preparation.choice if chosen is rows]
    part = module.step_flops(length, boundary - 1 if boundary > 0 else None, cached)
    return part / module.step_flops(length, None, ())


def _validation_size(preparation: Preparation) -> float:
    """Tokens of the validation splits, as a fraction of those of the training split."""
    data = preparation.data
    tokens = sum(data.lengths(split).sum() for split in data.task.validation_splits)
    return float(tokens / data.lengths(data.train_split, training=True).sum())


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
