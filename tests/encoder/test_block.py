from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from finetune.encoder import EncoderConfig
from finetune.encoder import block as blocks
from finetune.encoder.block import EncoderBlock
from finetune.encoder.config import NORM_POSITIONS
from finetune.encoder.layout import Chosen, Unpadded
from finetune.errors import ConfigError

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


def options_of(layout: str) -> tuple[torch.Tensor, dict[str, Any]]:
    """Hidden states of 2 sequences of 6 tokens in a layout, and the block's options for it."""
    hidden = torch.randn(2, 6, 16)
    if layout == "unpadded":
        unpadded = Unpadded.from_mask(torch.arange(6) < torch.tensor([[6], [3]]), 1)
        return unpadded.unpad(hidden), {"layout": unpadded}
    queries = CHOSEN if layout == "chosen" else None
    return hidden, {"queries": queries}


TRACED = torch.compile(blocks._call, dynamic=True, fullgraph=True, backend="eager")
CHOSEN = Chosen.from_positions(torch.tensor([1, 2, 8]), 2, 6)


@pytest.mark.parametrize("layout", ["padded", "chosen", "unpadded"])
def test_a_block_is_traced_as_one_graph_and_gives_the_same(tiny: Tiny, layout: str) -> None:
    block = EncoderBlock(tiny(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    hidden, options = options_of(layout)
    bias = torch.zeros(2, 1, 1, 6)
    expected = block(hidden, bias, **options)[0]
    torch.testing.assert_close(TRACED(block, hidden, bias, **options)[0], expected)


def test_dropout_is_part_of_the_graph(tiny: Tiny) -> None:
    block, hidden = EncoderBlock(tiny(hidden_dropout_prob=0.5)), torch.randn(2, 5, 16)
    one, other = (TRACED(block, hidden)[0] for _ in range(2))
    assert not torch.equal(one, other)
    assert torch.equal(TRACED(block.eval(), hidden)[0], block(hidden)[0])


def test_what_the_compiler_says_is_one_line(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*inputs: Any) -> None:
        raise TorchDynamoException("no ninja\nmore of it")

    monkeypatch.setattr(blocks, "_compiled", lambda: fails)
    with pytest.raises(
        ConfigError, match=r"^compile: expected .* got: no ninja; leave compile out$"
    ):
        blocks.call_compiled(EncoderBlock(tiny()), torch.randn(2, 5, 16))


def test_one_compilation_serves_all_blocks_and_lengths(tiny: Tiny) -> None:
    graphs: list[object] = []

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(blocks._call, dynamic=True, backend=backend)
    some = [EncoderBlock(tiny()) for _ in range(2)]
    for batch, length in ((2, 6), (3, 9), (4, 7)):
        positions = torch.arange(0, batch * length, 3)
        queries = Chosen.from_positions(positions, batch, length)
        for block in some:
            compiled(block, torch.randn(batch, length, 16), queries=queries)
    assert len(graphs) == 1
