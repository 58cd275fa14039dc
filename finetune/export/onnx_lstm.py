"""The LSTM of a recurrent block as one node of a graph.

Torch records an LSTM as one step after the other, which fixes the number of tokens. So what is
recorded is an operator of our own, and the graph gets ONNX's LSTM in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from finetune.encoder.recurrent import Reader

NAME = "finetune::lstm"


def _shape(inputs: Tensor, w: Tensor, r: Tensor, b: Tensor, cells: int) -> Tensor:
    return inputs.new_empty(*inputs.shape[:2], cells)


torch.library.define(NAME, "(Tensor inputs, Tensor w, Tensor r, Tensor b, int cells) -> Tensor")
torch.library.register_fake(NAME, _shape)  # recording needs shapes alone


class RecordedReader(nn.Module):
    """Stands for a `Reader` while a model is recorded; it cannot be run."""

    def __init__(self, reader: Reader) -> None:
        """Take the weights, with the gates in ONNX's order."""
        super().__init__()
        weights = reader.lstm.state_dict()
        self.cells = reader.lstm.hidden_size
        self.w = nn.Parameter(_ordered(weights["weight_ih_l0"]), requires_grad=False)
        self.r = nn.Parameter(_ordered(weights["weight_hh_l0"]), requires_grad=False)
        biases = [_ordered(weights[name]) for name in ("bias_ih_l0", "bias_hh_l0")]
        self.b = nn.Parameter(torch.cat(biases, dim=1), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Record the operator, (S, T, D) -> (S, T, cells)."""
        states: Tensor = torch.ops.finetune.lstm(inputs, self.w, self.r, self.b, self.cells)
        return states


def _ordered(weight: Tensor) -> Tensor:
    """One direction's gates as ONNX has them: input, output, forget, cell."""
    i, f, g, o = weight.chunk(4)
    return torch.cat([i, o, f, g]).unsqueeze(0)


def translations() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The operator -> what the graph gets for it, as `torch.onnx.export` wants it."""
    from onnxscript import opset18 as op

    def lstm(inputs: Any, w: Any, r: Any, b: Any, cells: int) -> Any:
        states, _, _ = op.LSTM(op.Transpose(inputs, perm=[1, 0, 2]), w, r, b, hidden_size=cells)
        axes: Any = op.Constant(value_ints=[1])
        one_direction = op.Squeeze(states, axes)  # (T, 1, S, cells) -> (T, S, cells)
        return op.Transpose(one_direction, perm=[1, 0, 2])

    return {torch.ops.finetune.lstm.default: lstm}
