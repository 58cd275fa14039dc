"""Dropout that is cheap on a CPU as well, in time and in memory.

Torch's own draws one floating-point number an element, on one core, which costs as much as a
matrix product of the same output, and keeps as many of them for the backward pass. Sixteen random
bits decide as well, one draw gives 64, and of each element one bit needs to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEVELS = 1 << 16  # what sixteen bits can distinguish
CHUNK = 1 << 18  # elements decided at a time: what they need fits the processor's cache
MANY = 1 << 21  # elements whose factors, 8 MiB, are worth unpacking twice instead of keeping
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # of each byte, (256, 8)


@dataclass(frozen=True)
class DropoutMask:
    """Which elements dropout keeps.

    Attributes:
        bits: One an element, eight a byte, uint8.
        scale: Factor of what is kept.
    """

    bits: np.ndarray[Any, np.dtype[np.uint8]]
    scale: float

    @classmethod
    def draw(cls, count: int, p: float) -> DropoutMask:
        """Decide for a number of elements, as `drop_on_cpu` does.

        Args:
            count: Number of elements.
            p: Probability of dropping an element, in [0, 1).
        """
        lowest, scale = _kept_from(p)
        bits = np.empty((count + 7) // 8, dtype=np.uint8)
        for start in range(0, count, CHUNK):
            levels = _draw_levels(min(CHUNK, count - start)).numpy()
            packed = np.packbits(levels >= lowest)
            bits[start // 8 :][: len(packed)] = packed
        return cls(bits, scale)

    def factors(self, start: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Unpack what some elements are multiplied with, from element number `start` on."""
        first, skipped = divmod(start, 8)
        end = start + shape.numel()
        kind = np.float64 if dtype == torch.float64 else np.float32
        table = _BITS * kind(self.scale)  # a look-up takes a step less than `unpackbits`
        unpacked = table.take(self.bits[first : (end + 7) // 8], axis=0).reshape(-1)
        return torch.from_numpy(unpacked[skipped:][: shape.numel()]).view(shape).to(dtype)

    def thin(self, inputs: Tensor) -> Tensor:
        """Multiply as many elements as were decided for, any shape."""
        flat = inputs.reshape(-1)
        thinned = torch.empty_like(flat)
        for start in range(0, len(flat), CHUNK):
            some = flat[start : start + CHUNK]
            factors = self.factors(start, some.shape, some.dtype)
            torch.mul(some, factors, out=thinned[start : start + CHUNK])
        return thinned.view(inputs.shape)


class _Drop(torch.autograd.Function):
    """Multiply with factors that are unpacked again for the gradient."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, p: float) -> Tensor:
        kept = ctx.kept = DropoutMask.draw(inputs.numel(), p)
        return kept.thin(inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.kept.thin(gradient), None


def drop_on_cpu(inputs: Tensor, p: float) -> Tensor:
    """Zero each element with probability p and scale the others up to keep the expectation.

    The draws come from torch's default generator: `torch.manual_seed` repeats them, and a
    checkpoint of that generator's state resumes them. The probability is rounded to 1/65536,
    and the scale is that of the rounded probability, so that the expectation is exact.

    Args:
        inputs: Any shape, on the CPU.
        p: Probability of zeroing an element, in [0, 1).

    Returns:
        The thinned inputs, same shape and dtype.
    """
    if inputs.numel() >= MANY:
        thinned: Tensor = _Drop.apply(inputs, p)  # type: ignore[no-untyped-call]
        return thinned
    lowest, scale = _kept_from(p)
    levels = _draw_levels(inputs.numel()).view(inputs.shape)
    # In place, so as 0 and 1 in int16: torch compares these many at a time, but not into bool.
    return inputs * levels.ge_(lowest).to(inputs.dtype).mul_(scale)


def _kept_from(p: float) -> tuple[int, float]:
    """The lowest level that is kept, and the factor of what is kept."""
    # A p that rounds to 1 would drop everything and scale by infinity.
    dropped_levels = min(round(p * LEVELS), LEVELS - 1)
    return dropped_levels - LEVELS // 2, LEVELS / (LEVELS - dropped_levels)


def _draw_levels(count: int) -> Tensor:
    """Draw a number from -LEVELS / 2 to LEVELS / 2 - 1 for each element, int16."""
    # The whole range of int64: by default `random_` leaves the sign bit of each draw at zero.
    draws = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    return draws.view(torch.int16)[:count]


class Dropout(nn.Module):
    """Dropout (Srivastava et al., 2014): thin while training, do nothing in evaluation."""

    def __init__(self, p: float) -> None:
        """Set the rate.

        Args:
            p: Probability of zeroing an element, in [0, 1).
        """
        super().__init__()
        self.p = p

    def forward(self, inputs: Tensor) -> Tensor:
        """Thin the inputs, any shape, if the module is in training mode."""
        if not self.training or self.p == 0.0:
            return inputs
        # The compiler knows no draws of integers, and fuses those of torch.
        if inputs.device.type == "cpu" and not torch.compiler.is_compiling():
            return drop_on_cpu(inputs, self.p)
        return F.dropout(inputs, self.p)

    def extra_repr(self) -> str:
        """Show the rate when the module is printed."""
        return f"p={self.p}"


class LockedDropout(Dropout):
    """Dropout of the same numbers of D at all tokens of a sequence (Merity et al., 2018, 4.2).

    Also called variational dropout (Gal and Ghahramani, 2016, section 4): a state that is handed on
    from token to token loses the same numbers all the way, instead of all of them in the end.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Thin the inputs (B, T, D) if the module is in training mode."""
        if not self.training or self.p == 0.0:
            return inputs
        return inputs * super().forward(torch.ones_like(inputs[..., :1, :]))
