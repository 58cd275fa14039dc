"""The convolutional block: each token's new state is made from its neighbours alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finetune.encoder.config import GATED_ACTIVATIONS, EncoderConfig
from finetune.encoder.feedforward import activation
from finetune.encoder.layout import Rows


class Convolution(nn.Module):
    """Filters of several widths, side by side (Kim, 2014, section 2).

    A filter of width w makes act(W [x_{t-l}; …; x_{t+r}] + b) of each token, where l + r = w - 1.
    The token is the middle one, of an even number the left of the two in the middle, and where the
    encoder is causal the last one. Outside of the sequence there are zeros. The widths have equal
    parts of the D filters, so that their results together are D wide; a pooling `max` above one
    such block is Kim's network. A gated activation makes two numbers a filter, the second of which
    the activated first one multiplies (Dauphin et al., 2017, section 2).
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Make the filters of each width."""
        super().__init__()
        self.causal, self.activation = config.causal, activation(config.hidden_act)
        self.gated = config.hidden_act in GATED_ACTIVATIONS
        outputs = 2 if self.gated else 1
        self.widths = config.conv_widths
        self.filters = nn.ModuleList(
            nn.Conv1d(config.hidden_size, outputs * count, width)
            for width, count in zip(self.widths, config.filter_counts, strict=True)
        )

    def forward(self, hidden: Tensor, rows: Rows | None) -> Tensor:
        """Filter all sequences.

        Args:
            hidden: (B, T, D).
            rows: Where the sequences are; None where each row of the batch is one, without padding.

        Returns:
            (B, T, D).
        """
        inputs = hidden if rows is None else rows.place(hidden, rows.forward)
        filters = zip(self.filters, self.widths, strict=True)
        states = torch.cat([self._filter(each, width, inputs) for each, width in filters], dim=-1)
        return states if rows is None else rows.take(states, rows.forward)

    def _filter(self, filters: nn.Module, width: int, inputs: Tensor) -> Tensor:
        """Apply the filters of one width, (S, T, D) -> (S, T, their number)."""
        before = width - 1 if self.causal else (width - 1) // 2
        padded = F.pad(inputs.transpose(1, 2), (before, width - 1 - before))  # (S, D, T + w - 1)
        outputs: Tensor = filters(padded).transpose(1, 2)
        if not self.gated:
            return self.activation(outputs)
        gate, values = outputs.chunk(2, dim=-1)
        return self.activation(gate) * values
