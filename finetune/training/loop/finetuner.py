"""Fine-tuning: encoder and head, judged by the task's metrics (Devlin et al., 2019, section 4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from finetune.encoder import Encoder
from finetune.encoder.cost import training_flops_per_token
from finetune.errors import ConfigError
from finetune.heads import (
    Classification,
    MaskedLM,
    TaskHead,
    cross_entropy,
    head_logits,
    reads_one,
    states_for,
    suffix_for,
)
from finetune.metrics.semantics import of_split
from finetune.task import decision
from finetune.task.interface import Example, Outputs, Task
from finetune.text.features.pairs import Features
from finetune.training.answering import ReadsAnswers, in_order, units_of
from finetune.training.config import RegularizationConfig
from finetune.training.loop.accumulation import labelled
from finetune.training.loop.module import EncoderWithHead
from finetune.training.loop.task_data import TaskData, rows_in
from finetune.training.optimizer import OptimizerConfig
from finetune.training.prefix.cache import PrefixCache
from finetune.training.prefix.store import Rows
from finetune.training.ranks import Ranks
from finetune.training.regularization import (
    check_regularization,
    language_model_loss,
    pretrained_weights,
    pull_to_pretrained,
    put_mixout,
    r_drop_loss,
    reinitialise,
)
from finetune.training.schedules import ScheduleConfig


@dataclass(frozen=True)
class Scored:
    """A split that is scored while training."""

    examples: Sequence[Example]
    """What the answers belong to."""
    features: Sequence[Features]
    """What the encoder reads, in the order of the outputs."""


class FineTuner(ReadsAnswers, EncoderWithHead):
    """Encoder and task head.

    A batch has `index` int64 (B,): the units' numbers in their split, `input_ids` (B R, T),
    `token_type_ids` (B R, T), `attention_mask` bool (B R, T) where some row is padded, `labels`
    (B,), (B, 2) or (B, C), and `context` (B, 2) for spans; a unit has R sequences, 1 but for the
    options of a question.

    Under any Trainer of Lightning it logs `train/loss`, `val/loss` and the task's metrics, which
    callbacks may monitor; the Trainer's length gives the schedule its end.

    >>> import pytorch_lightning as pl
    >>> from finetune import FineTuner, HeadConfig, TaskData, find_checkpoint, find_task
    >>> checkpoint = find_checkpoint("runs/pretrained")
    >>> encoder, tokenizer = checkpoint.encoder(), checkpoint.tokenizer()
    >>> task = find_task("classify", train="data/train.csv", validation="data/validation.csv")
    >>> tuner = FineTuner(encoder, task.head(encoder.config, HeadConfig()), task)
    >>> trainer = pl.Trainer(max_epochs=1, log_every_n_steps=1, accelerator="cpu", logger=False,
    ...                      enable_checkpointing=False, enable_progress_bar=False,
    ...                      enable_model_summary=False)
    >>> trainer.fit(tuner, datamodule=TaskData(task, tokenizer))
    >>> sorted(trainer.callback_metrics)  # doctest: +NORMALIZE_WHITESPACE
    ['train/loss', 'val/accuracy', 'val/auc', 'val/loss', 'val/macro_f1', 'val/macro_precision',
    'val/macro_recall']
    """

    head: TaskHead

    def __init__(
        self,
        encoder: Encoder,
        head: TaskHead,
        task: Task,
        *,
        validation: Mapping[str, Scored] | None = None,
        optimizer: OptimizerConfig | None = None,
        schedule: ScheduleConfig | None = None,
        regularization: RegularizationConfig | None = None,
        lm_head: MaskedLM | None = None,
        seed: int = 0,
    ) -> None:
        """Put a task's head on an encoder.

        Args:
            encoder: Pretrained or fresh.
            head: Made by `task.head`.
            task: Reads answers off the outputs and scores them.
            validation: Each validation split, in the order of the loaders; left out, those of
                the TaskData that the Trainer is given.
            optimizer: Rates and decay.
            schedule: Shape of the rate over the run.
            regularization: Keeps the weights near the pretrained ones, or steadies the loss.
            lm_head: The encoder's language-model head, for `lm_weight`; not trained further.
            seed: Keys the dropout of every step.

        Raises:
            ConfigError: The regularization does not suit the head or the encoder.
        """
        super().__init__(encoder, head, optimizer=optimizer, schedule=schedule, seed=seed)
        self.task = task
        self.regularization = regularization or RegularizationConfig()
        check_regularization(self.regularization, head, encoder, lm_head)
        self._lm_head = (lm_head,)  # in a tuple: it is not trained, nor stored
        reinitialise(encoder, self.regularization.reinit_blocks, seed, head)
        start: dict[str, Tensor] = {}
        if self.regularization.mixout or self.regularization.l2_sp:
            start = pretrained_weights(encoder, self.regularization.reinit_blocks)
        put_mixout(encoder, start, self.regularization.mixout)
        # Mixout's layers refer to theirs; here only L2-SP needs them.
        self._pretrained = start if self.regularization.l2_sp else {}
        self.validation: Mapping[str, Scored] = validation or {}
        self.caches: Mapping[str, PrefixCache] = {}
        """Split -> the frozen part's hidden states that are cached."""
        self.split: str | None = None
        """The split that is being read."""
        self._index: tuple[Any, Any] = (None, None)  # of the last batch, and its sequences' numbers
        self.decision: dict[str, float] = {}
        """Numbers that were tuned on the first validation split when it was last scored."""
        self._validated: dict[str, tuple[int, Outputs]] = {}  # by split: after which step, and what

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the pretrained weights wherever the trained ones go.

        They are no buffers: several processes would send those to each other in every step.
        """
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._pretrained = {name: fn(weight) for name, weight in self._pretrained.items()}
        return self

    def _apply_batch_transfer_handler(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        """Move a batch as Lightning does, and remember the numbers that cached states are read by.

        Its public hook would warn of a datamodule, whose hook it takes the place of.
        """
        moved = super()._apply_batch_transfer_handler(batch, device, dataloader_idx)
        if self.caches and batch:  # a process may have an empty one: see `validation_step`
            self._index = moved["index"], rows_in(batch, self.task)
        return moved

    def setup(self, stage: str) -> None:
        """Score against the splits of the data that the Trainer was given, or against others."""
        data = getattr(self.trainer, "datamodule", None)
        if not self.validation and isinstance(data, TaskData):
            self.validation = {
                split: Scored(data.examples(split), data.features(split))
                for split in self.task.validation_splits
            }

    def forward(self, batch: Mapping[str, Tensor], *, generate: bool = False) -> Tensor:
        """Logits of a batch, in the head's shape; or what a head that generates gives."""
        hidden = self.hidden(batch)
        if generate:  # here and not apart: where weights are divided, a forward gathers them
            return self.head.generate(hidden, batch)
        if self.regularization.lm_weight and self.training:
            self._lm_loss = language_model_loss(self._lm_head[0], hidden, batch)
        return head_logits(self.head, hidden, batch)

    def hidden(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Last hidden states; the frozen prefix is read, or run without gradients.

        Returns:
            (B R, T, D), or (B R, 1, D) where the head reads one token's state alone; the states of
            all layers, (L + 1, B R, T, D), where it mixes them.
        """
        depth = None if self.phases is None else self.phases.frozen_depth
        reads_all = self.training and self.regularization.lm_weight > 0  # all tokens' states
        if depth is None:
            return states_for(self.head, self.encoder, batch, all_tokens=reads_all)
        if self.head.all_layers:
            return self._all_layers(batch, depth)
        cache, rows = self._cached(batch)
        prefix = cache.hidden(self.encoder, batch, rows, depth)
        return suffix_for(self.head, self.encoder, batch, prefix, depth, all_tokens=reads_all)

    def _all_layers(self, batch: Mapping[str, Tensor], depth: int) -> Tensor:
        """The states at all boundaries, (L + 1, B, T, D), those up to `depth` without gradients."""
        cache, rows = self._cached(batch)
        states = cache.layers(self.encoder, batch, rows, depth)
        mask, segments = batch.get("attention_mask"), batch.get("token_type_ids")
        run = self.encoder.suffix
        for start in range(depth, self.encoder.config.num_hidden_layers):
            states.append(run(states[-1], mask, start, until=start + 1, token_type_ids=segments))
        return torch.stack(states)

    def flops_per_token(self, length: float) -> float:
        """Count the arithmetic of a training step in the phase that is applied."""
        frozen = None if self.phases is None else self.phases.frozen_depth
        return self.step_flops(length, frozen, self._cache_of(self.task.train_split).depths)

    def step_flops(self, length: float, frozen: int | None, cached: Collection[int]) -> float:
        """Count the arithmetic of a training step, a token.

        Args:
            length: Mean number of tokens in a sequence.
            frozen: Blocks of the frozen prefix; None where nothing is frozen.
            cached: Boundaries whose states are read.
        """
        reads_all = self.regularization.lm_weight > 0
        return 3 * self.head.flops_per_token(length) + training_flops_per_token(
            self.encoder.config,
            round(length),
            frozen=frozen,
            cached=cached,
            all_layers=self.head.all_layers,
            one_token=not reads_all and reads_one(self.head, self.encoder, round(length)),
        )

    def _cache_of(self, split: str | None) -> PrefixCache:
        """The cache of a split; an empty one where there is none, or weights below have changed."""
        cache = self.caches.get(split or "")
        if cache is None or self.phases is None or not self.phases.prefix_is_original:
            return PrefixCache()
        return cache

    def _cached(self, batch: Mapping[str, Tensor]) -> tuple[PrefixCache, Rows]:
        """The cache of the split that is being read, and the rows of a batch if it is not empty."""
        cache = self._cache_of(self.split)
        if not cache.depths:
            return cache, np.empty(0, dtype=np.int64)
        index, rows = self._index
        if batch["index"] is not index:  # else: a look at those on a GPU would wait for its step
            rows = rows_in(batch, self.task)
        return cache, rows

    def training_step(self, batch: Mapping[str, Tensor], batch_idx: int) -> dict[str, Tensor]:
        """The head's loss, with the regularization that changes it."""
        self.split = self.task.train_split
        config, labels = self.regularization, batch["labels"]
        logits = self(batch)
        loss = self._loss(logits, labels)
        if config.r_drop:
            other_logits = self(batch)  # dropout draws on: another pass
            losses = (loss, self._loss(other_logits, labels))
            loss = r_drop_loss(losses, (logits, other_logits), config.r_drop, labels)
        if config.lm_weight:  # L3 = L2 + λ L1
            loss = loss + config.lm_weight * self._lm_loss
        return {"loss": loss}

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if smoothing := self.regularization.label_smoothing:
            weights = self.head.class_weights if isinstance(self.head, Classification) else None
            return cross_entropy(logits, labels, class_weights=weights, label_smoothing=smoothing)
        return self.head.loss(logits, labels)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Complete the gradient; pull the weights towards the pretrained ones, where asked for."""
        super().on_before_optimizer_step(optimizer)
        pull_to_pretrained(self.encoder, self._pretrained, self.regularization.l2_sp)

    def on_validation_epoch_start(self) -> None:
        """Start with no outputs of each validation split.

        Raises:
            ConfigError: There are batches, but nothing to score their answers against.
        """
        if not self.validation:
            raise ConfigError(
                "the FineTuner has validation batches but no examples to score them against: train "
                "with datamodule=TaskData(...), or give it validation={split: Scored(...)}"
            )
        super().on_validation_epoch_start()
        self._read: dict[str, list[_Read]] = {split: [] for split in self.validation}

    def validation_step(
        self, batch: Mapping[str, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Keep the outputs on their device, and the loss of the first split."""
        if not batch:  # another process has one, and this one none
            return
        split = self.split = list(self.validation)[dataloader_idx]
        logits = self(batch)
        loss = torch.zeros(2, device=logits.device)
        if dataloader_idx == 0:
            mean = self.head.loss(logits, batch["labels"])
            loss = torch.stack([mean, labelled(batch["labels"])])
        outputs = self.read(batch) if self.head.generates else self.outputs(logits, batch)
        self._read[split].append(_Read(outputs, batch["index"], loss))

    def _read_by_all(self) -> dict[str, list[_Read]]:
        """What all processes have read, by split, in the order of the loaders' batches."""
        ranks = Ranks.of(self._trainer)
        if ranks.size == 1:
            return self._read
        return {
            split: ranks.merged([one.cpu() for one in read]) for split, read in self._read.items()
        }

    def validation_metrics(self) -> dict[str, float]:
        """`val/loss`, `val/METRIC` of the first split and `val/SPLIT/METRIC` of others.

        Several processes, which must all ask, get the same: each example counts once. Of a split
        that was read in part (Lightning's sanity check, `limit_val_batches`) there is no score:
        answers are read off all of its outputs.
        """
        read = self._read_by_all()
        first = next(iter(read.values()))
        # In double precision: the sum over a large split would lose digits of small losses.
        losses, sizes = torch.stack([one.loss for one in first]).cpu().double().unbind(1)
        values = {"val/loss": float(losses @ sizes / sizes.sum().clamp(min=1))}
        for number, (split, scored) in enumerate(self.validation.items()):
            if not (parts := read[split]):
                continue
            outputs = in_order([one.outputs for one in parts], [one.order for one in parts])
            if len(outputs) < len(units_of(self.task, scored.features)):
                continue
            self._validated[split] = self.global_step, outputs
            given = (self.task, outputs, scored.examples, scored.features)
            if number == 0:
                # On the first split alone, and then applied to all: the others stay unseen.
                self.decision = decision.tune(*given)
            scores = self.task.score(decision.answers(*given, self.decision))
            named = of_split(number, split, scores)
            values |= {f"val/{name}": float(value) for name, value in named.items()}
        return values

    def validated(self, weights: Callable[[], Mapping[str, Tensor]]) -> dict[str, Outputs]:
        """What weights gave in the last validation, where `predict` would give the same bits.

        Args:
            weights: Reads them; they are looked at only where nothing else speaks against it.

        Returns:
            Split -> outputs; {} if the weights have changed since, are others, or were validated
            in part, in lower precision, from cached states or by several processes.
        """
        frozen = self.phases is not None and self.phases.frozen_depth is not None
        trainer = self._trainer
        if trainer is None or frozen or self.caches or trainer.world_size > 1:
            return {}
        steps = {step for step, _ in self._validated.values()}
        if str(trainer.precision) != "32-true" or steps != {self.global_step}:
            return {}
        given, own = weights(), self.state_dict()
        if given.keys() != own.keys() or not all(
            torch.equal(own[name].cpu(), tensor) for name, tensor in given.items()
        ):
            return {}
        return {split: outputs for split, (_, outputs) in self._validated.items()}


@dataclass(frozen=True)
class _Read:
    """A validation batch that was read."""

    outputs: Tensor
    """(B, …)."""
    order: Tensor
    """Numbers of its units, int64 (B,)."""
    loss: Tensor
    """Mean and count, (2,)."""

    def cpu(self) -> _Read:
        return _Read(self.outputs.cpu(), self.order.cpu(), self.loss.cpu())
