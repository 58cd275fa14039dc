from __future__ import annotations

import math

import pytest
import torch

from finetune.encoder.config import GATED_ACTIVATIONS
from finetune.encoder.feedforward import ACTIVATIONS, GatedFeedForward, activation, feed_forward

FORMULAS = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_agrees_with_its_formula(name: str) -> None:
    inputs = torch.linspace(-4, 4, 33)
    expected = torch.tensor([FORMULAS[name](x) for x in inputs.tolist()])
    torch.testing.assert_close(ACTIVATIONS[name](inputs), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_plain_feed_forward_is_two_layers(name: str) -> None:
    layer, hidden = feed_forward(4, 6, name), torch.randn(2, 3, 4)
    inner = ACTIVATIONS[name](hidden @ layer.intermediate.weight.T + layer.intermediate.bias)
    expected = inner @ layer.output.weight.T + layer.output.bias
    torch.testing.assert_close(layer(hidden), expected)


@pytest.mark.parametrize("name", GATED_ACTIVATIONS)
def test_gated_feed_forward_multiplies_gate_and_values(name: str) -> None:
    layer, hidden = feed_forward(4, 6, name), torch.randn(2, 3, 4)
    assert isinstance(layer, GatedFeedForward)
    gate_weight, value_weight = layer.intermediate.weight.split(6)
    gate_bias, value_bias = layer.intermediate.bias.split(6)
    gate = activation(name)(hidden @ gate_weight.T + gate_bias)
    inner = gate * (hidden @ value_weight.T + value_bias)
    expected = inner @ layer.output.weight.T + layer.output.bias
    torch.testing.assert_close(layer(hidden), expected)
