"""The position-wise feed-forward part of a block, plain and gated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder.config import GATED_ACTIVATIONS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
"""Name in a config -> function of each element."""


def activation(hidden_act: str) -> Callable[[Tensor], Tensor]:
    """Find the function of each element behind a plain or a gated activation's name."""
    return ACTIVATIONS[GATED_ACTIVATIONS.get(hidden_act, hidden_act)]


class FeedForward(nn.Module):
    """act(x W) U, with biases (Vaswani et al., 2017, section 3.3)."""

    def __init__(self, hidden_size: int, intermediate_size: int, hidden_act: str) -> None:
        """Make the two layers D -> F -> D."""
        super().__init__()
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.activation = activation(hidden_act)
        self.output = nn.Linear(intermediate_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the same two layers to each token, (B, T, D) -> (B, T, D)."""
        outputs: Tensor = self.output(self.activation(self.intermediate(hidden)))
        return outputs


class GatedFeedForward(FeedForward):
    """(act(x W) ⊙ x V) U, with biases (Shazeer, 2020, section 2).

    Three matrices instead of two: with the same F it has half as many parameters again.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, hidden_act: str) -> None:
        """Make the gate and the values as one layer D -> 2F, then F -> D."""
        super().__init__(hidden_size, intermediate_size, hidden_act)
        self.intermediate = nn.Linear(hidden_size, 2 * intermediate_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply the same gated layers to each token, (B, T, D) -> (B, T, D)."""
        # One product for both; the gate is the first half, as in ModernBERT's weights.
        gate, values = self.intermediate(hidden).chunk(2, dim=-1)  # 2 x (B, T, F)
        outputs: Tensor = self.output(self.activation(gate) * values)
        return outputs


def feed_forward(hidden_size: int, intermediate_size: int, hidden_act: str) -> FeedForward:
    """Make the variant that belongs to the activation's name."""
    variant = GatedFeedForward if hidden_act in GATED_ACTIVATIONS else FeedForward
    return variant(hidden_size, intermediate_size, hidden_act)
