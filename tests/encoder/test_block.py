from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from finetune.encoder import EncoderConfig
from finetune.encoder.block import EncoderBlock
from finetune.encoder.config import NORM_POSITIONS

Tiny = Callable[..., EncoderConfig]


def test_post_norm_normalises_each_residual_sum(tiny: Tiny) -> None:
    block, hidden = EncoderBlock(tiny(norm_position="post")), torch.randn(2, 5, 16)
    middle = block.attention_norm(hidden + block.attention(hidden)[0])
    expected = block.feedforward_norm(middle + block.feedforward(middle))
    torch.testing.assert_close(block(hidden)[0], expected)


def test_pre_norm_leaves_the_residual_stream_alone(tiny: Tiny) -> None:
    block, hidden = EncoderBlock(tiny(norm_position="pre")), torch.randn(2, 5, 16)
    middle = hidden + block.attention(block.attention_norm(hidden))[0]
    expected = middle + block.feedforward(block.feedforward_norm(middle))
    torch.testing.assert_close(block(hidden)[0], expected)


def test_output_norm_normalises_what_is_added(tiny: Tiny) -> None:
    block, hidden = EncoderBlock(tiny(norm_position="output")), torch.randn(2, 5, 16)
    middle = hidden + block.attention_norm(block.attention(hidden)[0])
    expected = middle + block.feedforward_norm(block.feedforward(middle))
    torch.testing.assert_close(block(hidden)[0], expected)


@pytest.mark.parametrize("norm_position", NORM_POSITIONS)
def test_without_residual_a_sublayer_replaces_the_states(tiny: Tiny, norm_position: str) -> None:
    block = EncoderBlock(tiny(norm_position=norm_position, residual=False))
    hidden = torch.randn(2, 5, 16)
    if norm_position == "pre":
        middle = block.attention(block.attention_norm(hidden))[0]
        expected = block.feedforward(block.feedforward_norm(middle))
    else:
        middle = block.attention_norm(block.attention(hidden)[0])
        expected = block.feedforward_norm(block.feedforward(middle))
    torch.testing.assert_close(block(hidden)[0], expected)


def test_dropout_thins_both_sublayers_but_not_the_residual(tiny: Tiny) -> None:
    block = EncoderBlock(tiny(norm_position="pre", hidden_dropout_prob=0.999))
    hidden = torch.randn(2, 5, 16)
    unchanged = (block(hidden)[0] == hidden).double().mean()
    assert unchanged > 0.95
    block.eval()
    assert not (block(hidden)[0] == hidden).any()
