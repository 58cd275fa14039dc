"""One gradient of a whole optimizer step, however its examples are divided into batches.

A head's loss is the mean over what is labelled in one batch. Lightning averages those means, over
the batches of a step (always dividing by `accumulate_grad_batches`, even where an epoch ends
before so many) and over the processes. Batches with few labels would count as much as those with
many, and the last step of an epoch would be too small. Here each batch is weighted by its labels,
so the gradient is that of one batch with all of them.

Dividing by the total when the step is complete, instead of counting ahead, needs nothing from the
loader, which may be a user's own. It costs a pass over the gradients, and only where a step has
several batches. Between processes the counts travel with the gradient, in the same all-reduce, as
do the loss and the clock, which all must know in every step: a step has no other collective.
Dropout and batch normalization still see one batch at a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from finetune.heads import IGNORED

FILLER = "filler"
"""Key of a batch that only stands where a process would have none, and counts nowhere."""


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


def labels_of(batch: Mapping[str, Tensor]) -> Tensor:
    """What `labelled` counts in a batch; none in one that is a filler."""
    count = labelled(batch["labels"])
    return torch.zeros_like(count) if FILLER in batch else count


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


class SharedSums:
    """Numbers of each process, added up over all of them together with a step's gradient.

    DDP hands its gradients to a hook in pieces, to be added up; here the numbers are put behind the
    first piece, the smallest. Where that cannot be done (another strategy than DDP, a hook that a
    Trainer brings, gradients in half precision) they take an all-reduce of their own, one a step.
    """

    def __init__(self) -> None:
        """Begin without a Trainer."""
        self.travel = False
        """Whether the numbers travel with the gradient, which is then a sum over the processes."""
        self.clock: Callable[[], float] = float
        """Gives the fraction of the run that is behind, in one of the processes; 0 elsewhere."""
        self._own = torch.zeros(2)  # labels, and the sum of their losses
        self._sums = torch.zeros(3)
        self._copies: deque[_Copy] = deque(maxlen=2)
        self._unit: float | None = None

    def attach(self, trainer: pl.Trainer) -> None:
        """Begin a training, whose model is wrapped by now."""
        model = trainer.strategy.model
        self._unit = None
        self._copies.clear()
        self.travel = (
            isinstance(model, DistributedDataParallel)
            and not model._comm_hooks  # there can be one
            # In half precision a count would be rounded.
            and all(weight.dtype == torch.float32 for weight in model.parameters())
        )
        if self.travel:
            assert isinstance(model, DistributedDataParallel)
            self._hook(model)

    def _hook(self, model: DistributedDataParallel) -> None:
        # A lambda: of a function torch would compare the annotations, which are text here.
        model.register_comm_hook(self, lambda shared, bucket: _added_with(shared, bucket))

    def wrap_again(self, trainer: pl.Trainer) -> None:
        """Wrap the module in DDP again, by what is trainable now, in all processes at once.

        What DDP has wrapped as trainable it looks for in each step, where it may be frozen by now:
        that takes a second all-reduce.
        """
        strategy = trainer.strategy
        if not self.travel or not isinstance(strategy, DDPStrategy):
            return
        before = strategy.model
        assert isinstance(before, DistributedDataParallel)
        before._remove_autograd_hooks()  # type: ignore[no-untyped-call]
        strategy._ddp_kwargs["find_unused_parameters"] = False
        strategy.model = strategy._setup_model(before.module)
        self._hook(strategy.model)

    @property
    def fraction(self) -> float | None:
        """What the clock gave, the same in all processes; None before the first step.

        On a GPU it is that of the step before the last: reading the last would wait for it.
        """
        late = bool(self._copies) and self._copies[-1].on_gpu
        return self._copies[-1 - late].read(2) if len(self._copies) > late else None

    def unit(self, trainer: pl.Trainer, count: Tensor) -> float:
        """About what is labelled in a batch, the same number in all processes.

        A power of two: to divide by another one after an interruption changes no digit.
        """
        if self._unit is None:  # once in a training
            mean = float(_added_up(trainer, count)) / trainer.world_size
            self._unit = 2.0 ** round(math.log2(max(1.0, mean)))
        return self._unit

    def begin(self) -> None:
        """Forget this process's numbers: a new step begins."""
        self._own = torch.zeros(2)

    def add(self, count: Tensor, loss: Tensor) -> None:
        """Add a batch: what is labelled in it, and the sum of its losses."""
        self._own = self._own.to(count.device) + torch.stack([count, loss.detach().float()])

    def to_send(self) -> Tensor:
        """This process's numbers, float32 (3,)."""
        clock = torch.tensor([self.clock()]).to(self._own.device, non_blocking=True)
        return torch.cat([self._own, clock])

    def arrive(self, sums: Tensor) -> None:
        """Take the sums that came with the gradient."""
        self._sums = sums

    def complete(self, trainer: pl.Trainer) -> None:
        """Let the sums of a step be read, once its gradient is complete."""
        if not self.travel:
            self._sums = _added_up(trainer, self.to_send())
        self._copies.append(_Copy(self._sums))

    @property
    def count(self) -> Tensor:
        """All that is labelled in the step, scalar."""
        return self._sums[0]

    @property
    def loss(self) -> Tensor:
        """The step's mean loss, as it was propagated back, scalar."""
        return self._sums[1] / self._sums[0].clamp(min=1)


class _Copy:
    """Numbers of a GPU on their way to the CPU, for which nobody waits before they are read."""

    def __init__(self, numbers: Tensor) -> None:
        self.on_gpu = numbers.device.type == "cuda"
        self._numbers = numbers
        if self.on_gpu:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers = pinned.copy_(numbers, non_blocking=True)
            self._arrival = torch.Event("cuda")
            self._arrival.record()

    def read(self, column: int) -> float:
        if self.on_gpu:
            self._arrival.synchronize()
        return float(self._numbers[column])


def _added_with(shared: SharedSums, bucket: Any) -> Future[Tensor]:
    """DDP's hook: add up a piece of the gradient, and our numbers with the first one."""
    gradient = bucket.buffer()
    if bucket.index() > 0:
        return _all_reduced(gradient).then(lambda done: done.value()[0])
    size = len(gradient)

    def part(done: Future[list[Tensor]]) -> Tensor:
        (sums,) = done.value()
        shared.arrive(sums[size:].clone())
        return sums[:size]

    return _all_reduced(torch.cat([gradient, shared.to_send()])).then(part)


def _all_reduced(tensor: Tensor) -> Future[list[Tensor]]:
    future: Future[list[Tensor]] = dist.all_reduce(tensor, async_op=True).get_future()
    return future


class StepWeights:
    """Weights the batches of an optimizer step, then divides its gradient by what they add up to.

    The unit of the weights is about the count of a batch, so that the weights are near 1, which
    keeps fp16 in range. A step of one batch in one process needs no division.
    """

    def __init__(self) -> None:
        """Begin with no batch."""
        self.shared = SharedSums()
        self.begin()

    def begin(self) -> None:
        """Forget the batches: a new step begins."""
        self.batches = 0
        self._unit: Tensor | float = 1.0
        self._count = torch.zeros(())
        self.shared.begin()

    def weigh(self, loss: Tensor, batch: Mapping[str, Tensor], trainer: pl.Trainer) -> Tensor:
        """Give a batch its weight in the step.

        Args:
            loss: The batch's mean, as Lightning divided it (and scaled it, under fp16).
            batch: With its labels.
            trainer: Its accumulation and processes.

        Returns:
            What is to be propagated back.
        """
        if trainer.accumulate_grad_batches == 1 and trainer.world_size == 1:
            return loss
        count = labels_of(batch)
        if self.batches == 0:
            alone = trainer.world_size == 1
            self._unit = count.clamp(min=1) if alone else self.shared.unit(trainer, count)
        self._count = count if self.batches == 0 else self._count + count
        self.batches += 1
        if trainer.world_size > 1:
            self.shared.add(count, loss * trainer.accumulate_grad_batches * count)
        return loss * (trainer.accumulate_grad_batches * count / self._unit)

    @torch.no_grad()
    def divide(self, parameters: Iterable[Tensor], trainer: pl.Trainer) -> None:
        """Divide the gradients by all that is labelled in the step, in units of its weights.

        Args:
            parameters: Those that are trained; one without a gradient is left out.
            trainer: Its processes.
        """
        alone = trainer.world_size == 1
        if alone and self.batches == 1:
            return
        total = (self._count if alone else self.shared.count).clamp(min=1)
        # What is added up by another than our hook is divided by the processes.
        sums = 1 if alone or self.shared.travel else trainer.world_size
        factor = self._unit * sums / total
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
