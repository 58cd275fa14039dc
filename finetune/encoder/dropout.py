"""Dropout that is cheap on a CPU as well.

Torch's own draws one floating-point number an element, on one core, which costs as much as a
matrix product of the same output. Sixteen random bits decide as well, and one draw gives 64.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16  # what sixteen bits can distinguish


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
    # A p that rounds to 1 would drop everything and scale by infinity.
    dropped_levels = min(round(p * LEVELS), LEVELS - 1)
    # The whole range of int64: by default `random_` leaves the sign bit of each draw at zero.
    draws = torch.empty((inputs.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    levels = draws.view(torch.int16)[: inputs.numel()].view(inputs.shape)
    # In place, so as 0 and 1 in int16: torch compares these many at a time, but not into bool.
    keep = levels.ge_(dropped_levels - LEVELS // 2)  # int16: levels begin at -LEVELS / 2
    return inputs * keep.to(inputs.dtype).mul_(LEVELS / (LEVELS - dropped_levels))


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
        if inputs.device.type == "cpu":
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
