"""The recurrent block: an LSTM reads the tokens one after the other, in both directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from finetune.encoder.config import EncoderConfig
from finetune.encoder.dropout import Dropout
from finetune.encoder.layout import Rows


class Reader(nn.Module):
    """One LSTM layer (Hochreiter and Schmidhuber, 1997) that reads from left to right.

        i, f, o = σ(W x_t + U h_{t-1} + b) each,   g = tanh(W x_t + U h_{t-1} + b)
        c_t = f ⊙ c_{t-1} + i ⊙ g,   h_t = o ⊙ tanh(c_t)

    While it trains, each number of all four U is zero with a probability: weight dropout (Merity et
    al., 2018, section 2). One draw serves all tokens of a batch.
    """

    def __init__(self, hidden_size: int, cells: int, weight_dropout: float) -> None:
        """Make the weights.

        Args:
            hidden_size: D, width of what it reads.
            cells: Width of its own state.
            weight_dropout: Probability of dropping a recurrent weight, in [0, 1).
        """
        super().__init__()
        self.lstm = nn.LSTM(hidden_size, cells, batch_first=True)
        self.weight_dropout = Dropout(weight_dropout)
        for name, weights in self.lstm.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(weights)
            if name == "bias_ih_l0":  # torch's order of the gates: input, forget, cell, output
                # A forget gate that starts open lets gradients pass (Jozefowicz et al., 2015, 5).
                nn.init.ones_(weights[cells : 2 * cells])

    def forward(self, inputs: Tensor) -> Tensor:
        """Read each row from its first token on, (S, T, D) -> (S, T, cells)."""
        lstm, recurrent = self.lstm, self.weight_dropout(self.lstm.weight_hh_l0)
        if recurrent is lstm.weight_hh_l0:
            return lstm(inputs)[0]  # type: ignore[no-any-return]
        zeros = inputs.new_zeros(1, len(inputs), lstm.hidden_size)
        weights = [lstm.weight_ih_l0, recurrent, lstm.bias_ih_l0, lstm.bias_hh_l0]
        # What nn.LSTM calls with its own weights: one layer with biases, in one direction.
        return torch.lstm(inputs, (zeros, zeros), weights, True, 1, 0.0, True, False, True)[0]


class Recurrent(nn.Module):
    """An LSTM in each direction, projected to the hidden size: [→h_t; ←h_t] W + b.

    Two separate layers, and not one of torch's with two directions: the second reads each sequence
    turned around within its own length. So padding changes nothing, as with packed sequences, and a
    batch with padding trains almost twice as fast on a CPU as with these.
    """

    def __init__(self, config: EncoderConfig) -> None:
        """Make one layer where the encoder is causal, otherwise two."""
        super().__init__()
        cells, drop = config.cells, config.weight_dropout_prob
        self.ahead: nn.Module = Reader(config.hidden_size, cells, drop)
        self.back: nn.Module | None = None
        if not config.causal:
            self.back = Reader(config.hidden_size, cells, drop)
        self.output = nn.Linear(cells if config.causal else 2 * cells, config.hidden_size)

    def forward(self, hidden: Tensor, rows: Rows | None) -> Tensor:
        """Read all sequences.

        Args:
            hidden: (B, T, D).
            rows: Where the sequences are; None where each row of the batch is one, without padding.

        Returns:
            (B, T, D).
        """
        states = [self._read(hidden, rows)]
        if self.back is not None:
            states.append(self._read_back(self.back, hidden, rows))
        outputs: Tensor = self.output(torch.cat(states, dim=-1))
        return outputs

    def _read(self, hidden: Tensor, rows: Rows | None) -> Tensor:
        if rows is None:
            return self.ahead(hidden)  # type: ignore[no-any-return]
        return rows.take(self.ahead(rows.place(hidden, rows.forward)), rows.forward)

    def _read_back(self, back: nn.Module, hidden: Tensor, rows: Rows | None) -> Tensor:
        if rows is None:
            return back(hidden.flip(1)).flip(1)  # type: ignore[no-any-return]
        return rows.take(back(rows.place(hidden, rows.backward)), rows.backward)
