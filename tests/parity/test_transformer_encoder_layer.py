"""`torch.nn.TransformerEncoderLayer`: another reference, which has pre-LN and ReLU as well."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from finetune.encoder import EncoderConfig
from finetune.encoder.block import EncoderBlock
from finetune.encoder.masks import mask_bias, visible_tokens

D, H, F = 24, 3, 40


def our_names(theirs: nn.TransformerEncoderLayer, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sort their tensors (weights or gradients, by name) under our names."""
    pairs = {
        "self_attn.out_proj": "attention.output",
        "linear1": "feedforward.intermediate",
        "linear2": "feedforward.output",
        "norm1": "attention_norm",
        "norm2": "feedforward_norm",
    }
    ours = {}
    for kind in ("weight", "bias"):
        projections = values[f"self_attn.in_proj_{kind}"].chunk(3)
        for name, tensor in zip(("query", "key", "value"), projections, strict=True):
            ours[f"attention.{name}.{kind}"] = tensor
        for other, name in pairs.items():
            ours[f"{name}.{kind}"] = values[f"{other}.{kind}"]
    return ours


@pytest.mark.parametrize("norm_position", ["pre", "post"])
@pytest.mark.parametrize("hidden_act", ["relu", "gelu"])
def test_outputs_and_gradients_agree(norm_position: str, hidden_act: str) -> None:
    torch.manual_seed(0)
    # In training mode: in eval mode torch takes an inference kernel that zeroes padding.
    theirs = nn.TransformerEncoderLayer(
        D, H, F, dropout=0.0, activation=hidden_act, batch_first=True,
        norm_first=norm_position == "pre", layer_norm_eps=1e-12,
    )  # fmt: skip
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    block = EncoderBlock(
        EncoderConfig(
            hidden_size=D,
            num_attention_heads=H,
            intermediate_size=F,
            hidden_act=hidden_act,
            norm_position=norm_position,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    weights = our_names(theirs, dict(theirs.state_dict()))
    block.load_state_dict(weights)
    hidden, lengths = torch.randn(3, 7, D), torch.tensor([7, 4, 2])
    attention_mask = torch.arange(7) < lengths[:, None]
    visible = visible_tokens(attention_mask, causal=False, length=7, device=hidden.device)

    expected = theirs(hidden, src_key_padding_mask=~attention_mask)
    outputs, _ = block(hidden, mask_bias(visible, torch.float32))

    torch.testing.assert_close(outputs, expected, atol=1e-5, rtol=1e-5)
    direction = torch.randn(3, 7, D) / 21
    (outputs * direction).sum().backward()
    (expected * direction).sum().backward()
    gradients = our_names(
        theirs, {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    )
    for name, parameter in block.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], atol=1e-5, rtol=1e-5)
