"""The contestants of the unfreezing benchmark: fine-tuning as a plain loop, an epoch a turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from contest import PAD
from torch import Tensor
from unfreezing_texts import BATCH, Texts

from finetune.encoder import Encoder, EncoderConfig
from finetune.heads import Classification, HeadConfig
from finetune.text.features.pairs import length_batches
from finetune.training.answering import UnitBatches
from finetune.training.config import CacheConfig
from finetune.training.loop.finetuner import FineTuner
from finetune.training.prefix.cache import (
    PrefixCache,
    RowSet,
    choose_depths,
    features_key,
    open_cache,
    uses_of,
)
from finetune.training.prefix.states import arithmetic_key
from finetune.training.randomness import seed_step
from finetune.training.schedules import ScheduleConfig
from finetune.training.unfreezing.phases import Phases
from finetune.training.unfreezing.plan import Pace
from finetune.training.unfreezing.policies import UnfreezeConfig, make_plan
from finetune.training.unfreezing.rates import RatePlan

CLIP = 1.0


@dataclass(frozen=True)
class Policy:
    """A contestant's plan."""

    epochs: int
    """Of the run."""
    unfreezing: UnfreezeConfig
    """The policy."""
    of_uncached: float | None = None
    """Asked: time with the cache over time without it, at most."""
    of_full: float | None = None
    """Asked: time with the cache over that of full fine-tuning over as many epochs, at most."""


class Plain(FineTuner):
    """The frozen prefix as one writes it without a cache."""

    def hidden(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Last hidden states, (B, T, D)."""
        depth = None if self.phases is None else self.phases.frozen_depth
        if depth is None:
            return super().hidden(batch)
        mask, first_only = batch.get("attention_mask"), bool(self.head.first_only)
        with torch.no_grad():
            prefix = self.encoder.prefix(batch, depth)  # (B, T, D)
        return self.encoder.suffix(prefix, mask, depth, first_only=first_only)


@dataclass(frozen=True)
class Time:
    """Seconds by the clock, and of the processor over all threads."""

    clock: float
    processor: float

    def __add__(self, other: Time) -> Time:
        """Add both."""
        return Time(self.clock + other.clock, self.processor + other.processor)


def timed(part: Callable[[], Any], device: torch.device) -> Time:
    """Take the time of a part, a GPU's work included."""
    clock, processor = time.perf_counter(), time.process_time()
    part()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Time(time.perf_counter() - clock, time.process_time() - processor)


class Contestant:
    """A fine-tuning that goes on by an epoch a turn."""

    def __init__(
        self,
        policy: Policy,
        texts: Texts,
        shape: EncoderConfig,
        device: torch.device,
        *,
        cache: tuple[Path, CacheConfig] | None = None,
        seed: int = 1,
    ) -> None:
        """Build it; nothing is computed yet.

        Args:
            policy: What is trained when.
            texts: What is trained on.
            shape: Of the encoder, whose weights are the same for all.
            device: Where.
            cache: Folder and settings; None: without one.
            seed: Keys head, order and dropout.
        """
        self.policy, self.texts, self.cache, self.seed = policy, texts, cache, seed
        self.device = device
        torch.manual_seed(0)
        encoder = Encoder(shape)
        torch.manual_seed(seed)
        head = Classification(shape, HeadConfig(), 2)
        task: Any = SimpleNamespace(train_split="train", sequences_per_example=1)
        kind = Plain if cache is None else FineTuner
        self.module = kind(encoder, head, task, seed=seed).to(device).train()
        self.plan = make_plan(policy.unfreezing, shape.num_hidden_layers, policy.epochs)
        batches = len(self._order(0))
        pace = Pace(batches, total_steps=policy.epochs * batches)
        pace.check(self.plan)
        rates = RatePlan(self.plan, pace, ScheduleConfig())
        self.module.phases = Phases(rates, policy.unfreezing)
        self.optimizer = self.module.configure_optimizers()
        self.batches_done = self.epochs_done = self.encoded = 0
        self.filling: Time | None = None
        self.epochs: list[Time] = []

    def _order(self, epoch: int, *, shuffle: bool = True) -> list[Any]:
        lengths = self.texts.lengths
        return length_batches(lengths, BATCH, seed=self.seed, epoch=epoch, shuffle=shuffle)

    def turn(self) -> None:
        """Train an epoch, and fill the cache before the first."""
        if self.cache is not None and self.filling is None:
            self.filling = timed(self.open, self.device)
        self.epochs.append(timed(self._epoch, self.device))
        if len(self.epochs) == self.policy.epochs:
            self.close()

    def open(self) -> None:
        """Find or fill the hidden states that the plan reads, as a run does."""
        assert self.cache is not None
        folder, config = self.cache
        encoder, last = self.module.encoder, self.policy.epochs
        uses = uses_of(
            (phase.groups, (last if phase.end is None else phase.end) - phase.start)
            for phase in self.plan.phases
        )
        texts = self.texts
        rows = RowSet(texts.name, features_key(texts.features), texts.lengths, uses)
        chosen = choose_depths([rows], encoder.config.hidden_size, config)
        arithmetic = arithmetic_key(self.device, "32-true")
        cache: PrefixCache = open_cache(
            encoder,
            rows,
            [depth for _, depth in chosen],
            self._all_rows(),
            folder=folder,
            config=config,
            arithmetic=arithmetic,
        )
        self.module.caches = {"train": cache}

    def _all_rows(self) -> Iterator[tuple[Any, dict[str, Tensor]]]:
        """Each sequence once; counts what the encoder is asked for."""
        made = UnitBatches(self.texts.features, PAD)
        for rows in self._order(0, shuffle=False):
            self.encoded += len(rows)
            yield rows, made[rows]

    def close(self) -> None:
        """Let others remove what is kept."""
        for cache in self.module.caches.values():
            cache.close()

    def _epoch(self) -> None:
        made = UnitBatches(self.texts.features, PAD)
        for units in self._order(self.epochs_done):
            batch = {name: tensor.to(self.device) for name, tensor in made[units].items()}
            self._step(batch)
        self.epochs_done += 1

    def _step(self, batch: dict[str, Tensor]) -> None:
        module, phases = self.module, self.module.phases
        assert phases is not None
        layers = module.layers()
        phases.before_batch(layers, self.optimizer, self.batches_done)
        factors = phases.factors(layers, self.batches_done, 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak_lr"] * factors[group["layer"]]
        seed_step(self.seed, self.batches_done, 0)
        torch.autograd.backward(module.training_step(batch, 0)["loss"])
        module.configure_gradient_clipping(self.optimizer, CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.batches_done += 1
