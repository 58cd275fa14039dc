"""One gradient of a whole optimizer step, however its examples are divided into batches.

A head's loss is the mean over what is labelled in one batch. Lightning averages those means, over
the batches of a step (always dividing by `accumulate_grad_batches`, even where an epoch ends
before so many) and over the processes. Batches with few labels would count as much as those with
many, and the last step of an epoch would be too small. Here each batch is weighted by its labels,
so the gradient is that of one batch with all of them.

Dividing by the total when the step is complete, instead of counting ahead, needs nothing from the
loader, which may be a user's own. It costs a pass over the gradients, and only where a step has
several batches; several processes add up one number a batch. Dropout and batch normalization still
see one batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytorch_lightning as pl
import torch
from torch import Tensor

from finetune.heads import IGNORED


def labelled(labels: Tensor) -> Tensor:
    """Count what the mean of a head's loss is over: labelled tokens, examples or windows.

    Args:
        labels: int64 (N,) or (N, M), -100 where something takes no part; or float, where all do.

    Returns:
        The count, float32 scalar on the device of the labels.
    """
    if labels.is_floating_point():
        # A number or C decisions each: their mean is over texts, all of which take part.
        return torch.full((), float(len(labels)), device=labels.device)
    takes_part = labels != IGNORED
    return (takes_part if labels.ndim == 1 else takes_part.flatten(1).any(dim=1)).sum().float()


class LabelledMean:
    """A mean of losses in which each labelled token or example counts the same."""

    def __init__(self, total: float = 0.0, count: float = 0.0) -> None:
        """Start empty, or from what `state` gave."""
        self._total: Tensor | float = total  # a tensor later: adding does not wait for the device
        self._count: Tensor | float = count

    def add(self, mean: Tensor, count: Tensor) -> None:
        """Add a batch.

        Args:
            mean: Its loss, scalar.
            count: What is labelled in it, scalar.
        """
        self._total = self._total + mean.detach() * count
        self._count = self._count + count

    def state(self) -> tuple[float, float]:
        """Sum and count: what a mean that goes on starts from."""
        return float(self._total), float(self._count)

    def value(self, trainer: pl.Trainer) -> Tensor:
        """The mean over all processes, which must all ask; 0 where nothing is labelled."""
        sums = torch.stack([torch.as_tensor(part) for part in (self._total, self._count)])
        if trainer.world_size > 1:
            sums = _added_up(trainer, sums)
        return sums[0] / sums[1].clamp(min=1)


class StepWeights:
    """Weights the batches of an optimizer step, then divides its gradient by what they add up to.

    The unit of the weights is the count of the step's first batch (its mean over processes): the
    weights are near 1, which keeps fp16 in range, and a step of one batch needs no division.
    """

    def __init__(self) -> None:
        """Begin with no batch."""
        self.begin()

    def begin(self) -> None:
        """Forget the batches: a new step begins."""
        self.batches = 0
        self._unit = self._count = torch.zeros(())

    def weigh(self, loss: Tensor, labels: Tensor, trainer: pl.Trainer) -> Tensor:
        """Give a batch its weight in the step.

        Args:
            loss: The batch's mean, as Lightning divided it (and scaled it, under fp16).
            labels: The batch's.
            trainer: Its accumulation and processes.

        Returns:
            What is to be propagated back.
        """
        if trainer.accumulate_grad_batches == 1 and trainer.world_size == 1:
            return loss
        count = labelled(labels)
        if self.batches == 0:
            # Of all processes: a unit of its own in each would weigh their gradients apart.
            self._unit = (_added_up(trainer, count) / trainer.world_size).clamp(min=1)
        self._count = count if self.batches == 0 else self._count + count
        self.batches += 1
        return loss * (trainer.accumulate_grad_batches * count / self._unit)

    @torch.no_grad()
    def divide(self, parameters: Iterable[Tensor], trainer: pl.Trainer) -> None:
        """Divide the gradients by all that is labelled in the step, in units of its weights.

        Args:
            parameters: Those that are trained; one without a gradient is left out.
            trainer: Its processes.
        """
        total = _added_up(trainer, self._count).clamp(min=1)
        factor = self._unit * trainer.world_size / total
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        self.begin()


def _added_up(trainer: pl.Trainer, value: Tensor) -> Tensor:
    """The sum over all processes."""
    if trainer.world_size == 1:
        return value
    summed = trainer.strategy.reduce(value.clone(), reduce_op="sum")  # which works in place
    assert isinstance(summed, Tensor)
    return summed
