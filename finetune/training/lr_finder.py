"""The learning-rate range test: try rising rates for a few steps, and read one off the losses.

Smith, 2017, section 3.3: the rate grows from step to step; the loss first stays, then falls, then
diverges. As fastai (Howard and Gugger, 2020) made it known, the growth is exponential,
the losses are smoothed, and the run stops where they explode. That training leaves no trace, and
nothing is written here.

How a rate is read off, and why:

- `minimum`: the rate at which the smoothed loss was lowest. There it is about to diverge. The
  smoothed loss lags behind by up to nine steps, 0.6 of a decade in the usual range.
- **The suggestion is a tenth of it**, an order of magnitude from the cliff; that covers the lag.
- `steepest`: where the loss fell fastest on the way there, by straight lines through 15 losses each
  (Savitzky and Golay, 1964: no lag). Noise moves it more than the minimum. It is suggested, if it
  is the lower one, where the loss never rose again: few texts, memorized, show no cliff.
- No rate is suggested where the loss did not fall by more than the noise of its batches explains.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from finetune.errors import DataError
from finetune.training.loop.accumulation import labels_of
from finetune.training.loop.module import EncoderWithHead
from finetune.training.optimizer import make_optimizer
from finetune.training.randomness import seed_step

Ending = Literal["highest rate", "diverged", "not finite", "no more data"]

STEPS = 100
"""Enough to see a fall of a decade in 14 steps, few enough to cost a minute or two."""
LOWEST, HIGHEST = 1e-7, 1.0
"""Topmost group's rate: from where AdamW moves nothing to where any encoder diverges."""
DIVERGED = 4.0
"""The test is over once the smoothed loss exceeds so many times its best (fastai's factor)."""
SMOOTHING = 0.9
"""Weight of the losses before, in the running mean: about the last ten count."""
SETTLING = 10
"""The minimum is looked for after so many steps; before, the mean is of too few losses."""
WINDOW = 15
"""Losses that a straight line is drawn through, an odd number: one decade of the usual range."""
LEAST_FALL = 0.01
"""A fall below this fraction of the first losses is none, however little noise there is."""
NOISES = 1.5
"""A fall below so many standard deviations of a batch's loss is none.

The mean of ten losses less the lowest of ninety smoothed ones, of noise alone, is 0.5 of them on
average and 1.2 in one curve of a hundred; with the noise itself estimated, one flat curve of a
hundred passes (simulated; a test checks it).
"""

Numbers = npt.NDArray[np.float64]


def rates_of(steps: int, lowest: float = LOWEST, highest: float = HIGHEST) -> list[float]:
    """Rates that grow by the same factor from step to step.

    Args:
        steps: How many, at least 2.
        lowest: The first.
        highest: The last.
    """
    growth = math.log(highest / lowest)
    return [lowest * math.exp(growth * step / (steps - 1)) for step in range(steps)]


def smooth(losses: Sequence[float], smoothing: float = SMOOTHING) -> list[float]:
    """Exponential running mean with bias correction (as Adam's: Kingma and Ba, 2015, section 3).

    Args:
        losses: One a step.
        smoothing: Weight of what is behind, in [0, 1).

    Returns:
        As many values; the first is the first loss, and a constant stays what it is. After a value
        that is not finite none is.
    """
    mean, result = 0.0, []
    for count, loss in enumerate(losses, start=1):
        mean = smoothing * mean + (1 - smoothing) * loss
        result.append(mean / (1 - smoothing**count))
    return result


def has_diverged(smoothed: Sequence[float]) -> bool:
    """Whether the last smoothed loss exceeds four times the best one."""
    return bool(smoothed) and smoothed[-1] > DIVERGED * min(smoothed)


@dataclass(frozen=True)
class Suggestion:
    """What a curve says about the rate, or why it says nothing."""

    learning_rate: float | None
    """For the peak rate of the topmost group. None: nothing can be said."""
    minimum: float | None
    """Rate at which the smoothed loss was lowest."""
    steepest: float | None
    """Rate at which the loss fell fastest before that; None also where too few steps lie there."""
    reason: str
    """The finding in a sentence."""


def suggest(rates: Sequence[float], losses: Sequence[float]) -> Suggestion:
    """Read a rate off a curve.

    Args:
        rates: Ascending.
        losses: One a rate; what follows the first that is not finite is left out.

    Returns:
        The rates, or the reason why there are none.
    """
    finite = list(itertools.takewhile(math.isfinite, losses))
    if len(finite) <= SETTLING:
        return _nothing(
            f"only {len(finite)} losses came before the end, too few to read a rate off"
        )
    smoothed = smooth(finite)
    lowest = min(range(SETTLING, len(finite)), key=smoothed.__getitem__)
    start = float(np.mean(finite[:SETTLING]))
    fall, noise = start - smoothed[lowest], _noise(finite[: lowest + 1])
    if fall < max(NOISES * noise, LEAST_FALL * abs(start)):
        return _nothing(
            f"the loss did not fall: from {start:.4g} to {smoothed[lowest]:.4g} at best, which "
            f"batches that differ by {noise:.2g} explain"
        )
    step = _steepest(finite[: lowest + 1])
    steepest = None if step is None else rates[step]
    tenth, finding = rates[lowest] / 10, f"from {start:.4g} to {smoothed[lowest]:.4g}"
    if steepest is not None and steepest < tenth and lowest == len(finite) - 1:
        reason = f"the loss fell {finding} without rising again, and fastest at this rate"
        return Suggestion(steepest, rates[lowest], steepest, reason)
    reason = f"the loss fell {finding} at {rates[lowest]:.1e}, and this is a tenth of that rate"
    return Suggestion(tenth, rates[lowest], steepest, reason)


def _nothing(reason: str) -> Suggestion:
    return Suggestion(None, None, None, reason)


def _noise(losses: Sequence[float]) -> float:
    """Standard deviation of a loss about its trend, from second differences.

    Those of a straight line are 0 and those of white noise have √6 times its deviation. Their
    median ignores a few steps of another kind, and 0.6745 makes a deviation of it.
    """
    return float(np.median(np.abs(np.diff(losses, 2)))) / (0.6745 * math.sqrt(6))


def slopes(losses: Sequence[float], window: int = WINDOW) -> Numbers:
    """Slopes of straight lines, least squares, through each row of so many losses.

    Args:
        losses: One a step, N of them.
        window: An odd number, at most N.

    Returns:
        Loss a step, (N - window + 1,); the first belongs to step (window - 1) / 2.
    """
    steps = np.arange(window) - (window - 1) / 2
    rows = np.lib.stride_tricks.sliding_window_view(np.asarray(losses, dtype=np.float64), window)
    fitted: Numbers = rows @ steps / (steps @ steps)
    return fitted


def _steepest(losses: Sequence[float]) -> int | None:
    if len(losses) < WINDOW:
        return None
    fitted = slopes(losses)
    return int(fitted.argmin()) + WINDOW // 2 if fitted.min() < 0 else None  # the line's middle


@dataclass(frozen=True)
class RateCurve:
    """The losses of a range test."""

    rates: tuple[float, ...]
    """Of the topmost group, one a step, ascending."""
    losses: tuple[float, ...]
    """Of each step's batches, before the weights moved at that step's rate; all finite."""
    ending: Ending
    """Why there are no more steps."""

    @cached_property
    def smoothed(self) -> list[float]:
        """The running mean of the losses."""
        return smooth(self.losses)

    @cached_property
    def suggestion(self) -> Suggestion:
        """The rate that the curve speaks for."""
        return suggest(self.rates, self.losses)


def find_rate(
    module: EncoderWithHead,
    batches: Iterable[Mapping[str, Tensor]],
    device: torch.device,
    *,
    gradient_clip: float | None = 1.0,
    accumulate: int = 1,
    half_precision: bool = False,
    rates: Sequence[float] | None = None,
) -> RateCurve:
    """Train for a few steps at rising rates, and leave the module as it was, bit by bit.

    As in the run: its optimizer over the layer groups, whose rates keep their proportions; the
    gradient clipped; dropout keyed by the batch; frozen what the first phase freezes; and
    regularization.
    The run's schedule has no part in it, and fp16 is replaced by bfloat16, which needs no scaler.

    Args:
        module: What is to be trained, by its `optimizer_config`, `peak_rates`, `phases`, `seed`.
        batches: Training batches, in the order of the run; gone through again where they are few
            and can be (a loader can, a generator cannot).
        device: Where to run.
        gradient_clip: Largest norm of the gradient; None = no clipping.
        accumulate: Batches that make one step; each label in them counts the same.
        half_precision: Run forward passes under autocast to bfloat16.
        rates: Of the topmost group; left out, `rates_of(STEPS)`.

    Returns:
        The curve, as far as it was finite and had not diverged.

    Raises:
        DataError: There is no batch.
    """
    tried_rates = list(rates) if rates is not None else rates_of(STEPS)
    losses: list[float] = []
    with _left_as_it_was(module):
        steps = _Steps(module, device, gradient_clip, half_precision)
        stream = _again_and_again(batches)
        ending: Ending = "highest rate"
        for rate in tried_rates:
            batches_of_step = list(itertools.islice(stream, accumulate))
            if len(batches_of_step) < accumulate:
                ending = "no more data"
                break
            loss = steps.take(batches_of_step, rate)
            if not math.isfinite(loss):
                ending = "not finite"
                break
            losses.append(loss)
            if has_diverged(smooth(losses)):
                ending = "diverged"
                break
    return RateCurve(tuple(tried_rates[: len(losses)]), tuple(losses), ending)


class _Steps:
    """Optimizer steps as the run takes them, without a Trainer."""

    def __init__(
        self,
        module: EncoderWithHead,
        device: torch.device,
        gradient_clip: float | None,
        half_precision: bool,
    ) -> None:
        self.module, self.device = module.to(device), device
        self.gradient_clip, self.half_precision = gradient_clip, half_precision
        self.optimizer = make_optimizer(
            module.layers(), module.optimizer_config, peaks=module.peak_rates
        )
        head = next(g for g in reversed(self.optimizer.param_groups) if g["name"] == g["layer"])
        self.topmost = float(head["peak_lr"])
        self.batches_done = 0
        module.is_logged_step = False
        if module.phases is not None:
            module.phases.current = None  # else a module in mid-run would not leave its phase
        module.train()
        if module.phases is not None:
            module.phases.before_batch(module.layers(), self.optimizer, 0)

    def take(self, batches: Sequence[Mapping[str, Tensor]], rate: float) -> float:
        """Move the weights once; the mean loss over all that is labelled, before that."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["peak_lr"] / self.topmost
        # Each labelled token or example counts the same, as in the run (`loop/accumulation.py`).
        counts = [labels_of(batch).cpu() for batch in batches]
        count = torch.stack(counts).sum().clamp(min=1)
        fractions = [float(part / count) for part in counts]
        total = sum(map(self._backward, batches, fractions))
        self.module.on_before_optimizer_step(self.optimizer)
        self.module.configure_gradient_clipping(self.optimizer, self.gradient_clip, "norm")
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    def _backward(self, batch: Mapping[str, Tensor], fraction: float) -> float:
        """Propagate a batch's fraction of the step's loss back; that fraction of the loss."""
        seed_step(self.module.seed, self.batches_done, 0)
        moved = {name: tensor.to(self.device) for name, tensor in batch.items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half_precision):
            outputs: Any = self.module.training_step(moved, self.batches_done)
        loss: Tensor = outputs["loss"] * fraction
        loss.backward()  # type: ignore[no-untyped-call]
        self.batches_done += 1
        return float(loss.detach())


def _again_and_again(batches: Iterable[Mapping[str, Tensor]]) -> Iterator[Mapping[str, Tensor]]:
    """Go through the batches until a pass gives none."""
    for number in itertools.count():
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty and number == 0:
            raise DataError("expected batches to try learning rates on, got none")
        if empty:
            return


@contextmanager
def _left_as_it_was(module: EncoderWithHead) -> Iterator[None]:
    """Put back all that training changes: tensors, gradients, what is frozen, modes, device."""
    device = next(module.parameters()).device
    values = {name: tensor.detach().clone() for name, tensor in _tensors(module)}
    parameters = [(tensor, tensor.requires_grad, tensor.grad) for tensor in module.parameters()]
    modes = [(part, part.training) for part in module.modules()]
    attributes = (module.is_logged_step, module.gradient_norm)
    phase = None if module.phases is None else module.phases.current
    module.zero_grad()
    try:
        # Gradients also under a caller's no_grad; what dropout draws here moves no later draw.
        with torch.enable_grad(), torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        module.zero_grad()
        module.to(device)
        with torch.no_grad():
            for name, tensor in _tensors(module):
                tensor.copy_(values[name])  # into the same tensors: others may refer to them
        for tensor, trainable, gradient in parameters:
            tensor.requires_grad_(trainable).grad = gradient
        for part, mode in modes:
            part.training = mode
        module.is_logged_step, module.gradient_norm = attributes
        if module.phases is not None:
            module.phases.current = phase


def _tensors(module: EncoderWithHead) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, also those that are in no state dict."""
    return itertools.chain(module.named_parameters(), module.named_buffers())
