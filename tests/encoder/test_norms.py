from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers.models.t5.modeling_t5 import T5LayerNorm

from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.config import NORM_NAMES
from finetune.encoder.norms import NORMS, make_norm
from finetune.heads import MaskedLM

Tiny = Callable[..., EncoderConfig]


def test_each_name_in_a_config_has_a_norm() -> None:
    assert tuple(NORMS) == NORM_NAMES


def test_rms_is_that_of_torch_and_of_t5(tiny: Tiny) -> None:
    norm = make_norm(tiny(norm="rms", layer_norm_eps=1e-3), 16)
    nn.init.normal_(norm.weight)
    hidden = torch.randn(2, 5, 16)
    expected = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    torch.testing.assert_close(norm(hidden), expected)
    for other in (nn.RMSNorm(16, eps=1e-3), T5LayerNorm(16, eps=1e-3)):
        other.load_state_dict(norm.state_dict())
        torch.testing.assert_close(norm(hidden), other(hidden))


def test_rms_stands_wherever_a_net_has_a_norm(tiny: Tiny) -> None:
    config = tiny(norm="rms", norm_position="output")
    encoder = Encoder(config)
    head = MaskedLM(config, encoder.embeddings.word_embeddings)
    kinds = {type(module) for part in (encoder, head) for module in part.modules()}
    assert nn.RMSNorm in kinds
    assert nn.LayerNorm not in kinds
