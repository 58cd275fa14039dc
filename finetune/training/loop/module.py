"""An encoder and a head under one optimizer: what pretraining and fine-tuning share.

The learning rate and the dropout of a step are computed from the place in the run, in
`on_train_batch_start`; there is no scheduler and no generator whose state a checkpoint would need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import pytorch_lightning as pl
import torch
from pytorch_lightning.trainer.states import TrainerFn
from torch import Tensor, nn

from finetune.encoder import Encoder
from finetune.encoder.cost import training_flops_per_token
from finetune.errors import ConfigError
from finetune.heads import Head
from finetune.training.loop.accumulation import LabelledMean, StepWeights, labels_of
from finetune.training.loop.sharding import MESH, is_sharded, shard, whole
from finetune.training.optimizer import OptimizerConfig, make_optimizer
from finetune.training.randomness import seed_step
from finetune.training.schedules import ScheduleConfig, rate_factor
from finetune.training.unfreezing.phases import Phases


class EncoderWithHead(pl.LightningModule):
    """Encoder, head, an optimizer over layer groups, and a schedule over the run."""

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
        *,
        optimizer: OptimizerConfig | None = None,
        schedule: ScheduleConfig | None = None,
        seed: int = 0,
    ) -> None:
        """Put the parts together.

        Args:
            encoder: The network below.
            head: Turns hidden states into logits, and logits into a loss.
            optimizer: Rates and decay; AdamW's defaults when left out.
            schedule: Shape of the rate over the run; linear with warm-up when left out.
            seed: Keys the dropout of every step.
        """
        super().__init__()
        self.encoder = encoder.train()  # a Trainer keeps the modes that it finds
        self.head: Head = head.train()
        self.optimizer_config = optimizer or OptimizerConfig()
        self.schedule_config = schedule or ScheduleConfig()
        self.seed = seed
        self.progress: Callable[[], float] | None = None
        """Fraction of the run behind, in [0, 1]; None with one's own Trainer, whose length gives it
        and which logs the loss."""
        self.phases: Phases | None = None
        """What is trained when; None: everything, all the time."""
        self.peak_rates: Mapping[str, float] | None = None
        """Peak rate of each group by name; None: as the optimizer's config says."""
        self.gradient_norm: Tensor | None = None
        """Norm of the last step's gradient before clipping, where it was computed."""
        self.gradient_norms: dict[str, Tensor] = {}
        """Of the last logged step, the norm of each layer group that had a gradient, by name."""
        self.is_logged_step = False
        """Whether this step's figures are written; what costs a pass is computed only then."""
        self.step_weights = StepWeights()
        self._batch: Mapping[str, Tensor] | None = None
        self._step_loss = LabelledMean()

    def layers(self) -> dict[str, list[nn.Module]]:
        """Layer groups by name, lowest first: embeddings, block_1 … block_L, head."""
        return {**self.encoder.layer_groups(), "head": [self.get_submodule("head")]}

    def flops_per_token(self, length: float) -> float:
        """Count the arithmetic of a training step, as it now is.

        Args:
            length: Mean number of tokens in a sequence.

        Returns:
            Floating-point operations a token; a small head is left out.
        """
        return training_flops_per_token(self.encoder.config, round(length))

    def configure_model(self) -> None:
        """Divide the weights among processes, under a strategy that has a mesh of them (FSDP2)."""
        if self._device_mesh is not None and not is_sharded(self):
            shard(self, self.encoder.blocks, self._device_mesh[MESH])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """All parameters, in named groups, from the first step (frozen ones too).

        A subclass may return an optimizer of its own: groups made by `parameter_groups` follow the
        schedule, others keep the rate that they were given.
        """
        # The private name: `trainer` raises where the module is used without one.
        scaled = self._trainer is not None and str(self.trainer.precision) == "16-mixed"
        return make_optimizer(
            self.layers(), self.optimizer_config, fused=not scaled, peaks=self.peak_rates
        )

    def train(self, mode: bool = True) -> Self:
        """Put the module in training or eval mode; what is frozen stays in eval mode."""
        super().train(mode)
        if mode and self.phases is not None and self.phases.current is not None:
            self.phases.set_modes(self.layers())
        return self

    def on_train_start(self) -> None:
        """Let what processes share travel with the gradient."""
        self.step_weights.shared.attach(self.trainer)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Freeze and thaw, set each group's rate for this step, and key its dropout."""
        optimizer, done = self.trainer.optimizers[0], self.trainer.fit_loop.total_batch_idx
        if self.phases is not None:
            steps = done // self.trainer.accumulate_grad_batches
            before = self.phases.current
            self.phases.before_batch(self.layers(), optimizer, steps)
            if self.phases.current != before:
                self.step_weights.shared.wrap_again(self.trainer)
        scheduled = [group for group in optimizer.param_groups if "peak_lr" in group]
        factors = self._rate_factors() if scheduled else {}
        for group in scheduled:
            group["lr"] = group["peak_lr"] * factors[group["layer"]]
        self._batch = batch
        seed_step(self.seed, done, self.global_rank)

    def _rate_factors(self) -> dict[str, float]:
        """The factor on each layer group's peak rate for this step, by name."""
        layers, fraction = self.layers(), self.fraction_done()
        if self.phases is not None:
            return self.phases.factors(layers, self.global_step, fraction)
        return dict.fromkeys(layers, rate_factor(fraction, self.schedule_config))

    def on_before_zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin a step: gradients are added up from here."""
        self.step_weights.begin()

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Propagate a batch's loss back with its weight in the step.

        The gradient of a step is that of one batch with all examples of the step, over
        accumulated batches and processes.
        """
        if self._batch is not None:
            loss = self.step_weights.weigh(loss, self._batch, self.trainer)
        super().backward(loss, *args, **kwargs)

    def on_after_backward(self) -> None:
        """Take what all processes have sent with the gradient of a step."""
        if self.trainer.world_size > 1 and not self.trainer.fit_loop._should_accumulate():
            self.step_weights.shared.complete(self.trainer)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Complete the mean over the step; what else changes the gradient comes after this."""
        if self.step_weights.batches:
            # Before clipping and L2-SP, which are about the gradient of the whole step.
            self.step_weights.divide(_trained(optimizer), self.trainer)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log `train/loss` of each step, where no Monitor writes the figures of training."""
        if self.progress is not None:
            return
        loss = outputs["loss"] * self.trainer.accumulate_grad_batches  # Lightning divided it
        self._step_loss.add(loss, labels_of(batch))
        if not self.trainer.fit_loop._should_accumulate():
            self.log("train/loss", self._loss_of_step(), prog_bar=True)
            self._step_loss = LabelledMean()

    def _loss_of_step(self) -> Tensor:
        """The mean over all batches and processes; it came with the gradient, unless scaled."""
        scaled = getattr(self.trainer.precision_plugin, "scaler", None) is not None
        if self.trainer.world_size == 1 or scaled:
            return self._step_loss.value(self.trainer)
        return self.step_weights.shared.loss

    def fraction_done(self) -> float:
        """Fraction of the run that lies behind, in [0, 1].

        Raises:
            ConfigError: The run has no end that is known.
        """
        if self.progress is not None:
            return self.progress()
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ConfigError(
                "the learning rate follows the length of the run: give the Trainer max_epochs or "
                "max_steps, or set the module's progress to a function that gives the fraction done"
            )
        return self.global_step / max(1, int(steps))

    def validation_metrics(self) -> dict[str, float]:
        """The metrics of the batches since the validation began, by their logged names."""
        raise NotImplementedError

    def on_validation_epoch_start(self) -> None:
        """Note that the metrics of this validation are not logged yet."""
        self._is_validation_logged = False

    def on_validation_batch_end(
        self, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Log the metrics with the last batch of a validation.

        At the end of an epoch Lightning calls the callbacks' hooks before the module's: logged
        there, a callback would see the metrics of the validation before.
        """
        trainer = self.trainer
        sanity = trainer.sanity_checking
        counts = trainer.num_sanity_val_batches if sanity else trainer.num_val_batches
        if dataloader_idx == len(counts) - 1 and batch_idx == counts[-1] - 1:
            self.log_validation(self.validation_metrics())
            self._is_validation_logged = True

    def on_validation_epoch_end(self) -> None:
        """Log the metrics if no batch was known to be the last, as of a loader without length."""
        if not self._is_validation_logged:
            self.log_validation(self.validation_metrics())

    def log_validation(self, values: Mapping[str, float]) -> None:
        """Log values at the step they belong to; callbacks may monitor them.

        Lightning's own logging puts a validation in mid-epoch one step too early.
        """
        fitting = self.trainer.state.fn is TrainerFn.FITTING
        logs = False if fitting else None  # `Trainer.validate` returns what Lightning may log
        for name, value in values.items():
            number = torch.tensor(value, dtype=torch.float64).float()
            self.log(
                name,
                number,
                logger=logs,
                on_step=False,
                on_epoch=True,
                batch_size=1,  # it is a value of the whole split, not of the last batch
                add_dataloader_idx=False,
            )
        if fitting and not self.trainer.sanity_checking:
            for logger in self.trainer.loggers:
                logger.log_metrics(
                    {"epoch": epochs_done(self.trainer), **values}, step=self.global_step
                )

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip by global norm, and store the norm before that for the log.

        On logged steps the norm of each layer group is stored as well.
        """
        if gradient_clip_algorithm == "value":  # a user's Trainer may; it has no norm
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
            return
        if not gradient_clip_val and not self.is_logged_step:
            return
        if self.is_logged_step:
            self.gradient_norms = _norms_by_layer(optimizer)
        trained = list(_trained(optimizer))
        if gradient_clip_val:
            self.gradient_norm = whole(nn.utils.clip_grad_norm_(trained, gradient_clip_val))
        else:
            gradients = [p.grad for p in trained if p.grad is not None]
            self.gradient_norm = whole(nn.utils.get_total_norm(gradients))


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Parameters with a gradient, from the optimizer's lists.

    A walk over all modules takes longer than a small head's step.
    """
    for group in optimizer.param_groups:
        yield from (parameter for parameter in group["params"] if parameter.grad is not None)


def _norms_by_layer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The norm of the gradient of each layer group, lowest first; frozen ones have none."""
    gradients: dict[str, list[Tensor]] = {}
    for group in optimizer.param_groups:
        of_group = [p.grad for p in group["params"] if p.grad is not None]
        if of_group and "layer" in group:  # a custom optimizer has no names
            gradients.setdefault(group["layer"], []).extend(of_group)
    return {layer: whole(nn.utils.get_total_norm(tensors)) for layer, tensors in gradients.items()}


def epochs_done(trainer: pl.Trainer) -> float:
    """Epochs of training that are behind, with the part of the current one."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    batches = getattr(data, "micro_batches_per_epoch", trainer.num_training_batches)
    return (trainer.fit_loop.total_batch_idx + 1) / max(1.0, float(batches))
