"""Linear layers of 8 bits, held against the same in float32."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from finetune.encoder import Encoder
from finetune.encoder.int8 import Int8Linear, to_int8
from tests.made.nets import tiny_config


@pytest.mark.parametrize("bias", [True, False])
def test_layer_is_that_of_its_rounded_weights(bias: bool) -> None:
    """Weights to 1 of 127 of the largest of their row, inputs to 1 of 127 of their range."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 32, bias=bias)
    with torch.no_grad():
        linear.weight[0] = 0  # a row without any scale
        linear.weight[1] /= 1_000  # and one with a scale of its own
    inputs = torch.randn(3, 5, 64)
    outputs = Int8Linear(linear)(inputs)
    expected = linear(inputs)
    assert outputs.shape == expected.shape
    assert (outputs - expected).std() < 0.03 * expected.std()
    errors, sizes = (
        (part - part.mean((0, 1))).std((0, 1)) for part in (outputs - expected, expected)
    )
    assert (errors[1:] < 0.05 * sizes[1:]).all()
    assert torch.allclose(outputs[..., 0], expected[..., 0], atol=1e-6)


def test_encoder_has_no_other_linear_layers_left() -> None:
    torch.manual_seed(0)
    encoder = Encoder(tiny_config()).eval()
    batch = {"input_ids": torch.randint(5, 20, (2, 7))}
    rounded = to_int8(copy.deepcopy(encoder))
    assert not any(isinstance(part, nn.Linear) for part in rounded.modules())
    with torch.no_grad():
        exact = encoder(batch).last_hidden_state
        assert (
            torch.nn.functional.cosine_similarity(
                rounded(batch).last_hidden_state, exact, dim=-1
            ).min()
            > 0.999
        )
