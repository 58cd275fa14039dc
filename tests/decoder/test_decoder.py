from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from finetune.decoder import Decoder, DecoderCache, DecoderConfig
from finetune.encoder import Encoder, EncoderConfig
from finetune.encoder.config import NORM_POSITIONS, POSITIONS, SCORE_NAMES
from finetune.errors import ConfigError

ENCODER = EncoderConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
    initializer_range=0.3,
)
IDS = torch.tensor([[2, 7, 9, 11, 5], [2, 8, 4, 3, 0]])


def decoder(memory_size: int = 16, cross_score: str | None = None, **changes: Any) -> Decoder:
    torch.manual_seed(0)
    config = DecoderConfig().shape(dataclasses.replace(ENCODER, **changes))
    return Decoder(config, memory_size, cross_score).eval()


def memory(size: int = 16) -> torch.Tensor:
    return torch.randn(2, 6, size, generator=torch.Generator().manual_seed(1))


MASK = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("norm_position", NORM_POSITIONS)
def test_token_after_token_with_a_cache_gives_the_states_of_the_whole(
    position: str, norm_position: str
) -> None:
    net = decoder(position=position, norm_position=norm_position)
    whole = net(IDS, memory(), MASK).last_hidden_state
    cache = DecoderCache(2)
    each = [net(IDS[:, at : at + 1], memory(), MASK, cache=cache) for at in range(IDS.shape[1])]
    torch.testing.assert_close(torch.cat([one.last_hidden_state for one in each], dim=1), whole)


def test_a_cache_follows_the_rows_that_are_kept() -> None:
    net, cache, rows = decoder(), DecoderCache(2), torch.tensor([1, 1, 0])
    net(IDS[:, :4], memory(), MASK, cache=cache)
    cache.select(rows)
    last = net(IDS[rows, 4:], memory(), MASK[rows], cache=cache).last_hidden_state
    whole = net(IDS[rows], memory()[rows], MASK[rows]).last_hidden_state
    torch.testing.assert_close(last, whole[:, 4:])


@pytest.mark.parametrize("cross_score", SCORE_NAMES)
def test_any_score_reads_the_source_and_not_its_padding(cross_score: str) -> None:
    net, states = decoder(cross_score=cross_score), memory()
    output = net(IDS, states, MASK, output_attentions=True)
    assert type(net.blocks[0].cross_attention.score).__name__.lower() in cross_score.replace(
        "_", ""
    )
    (weights, _) = output.cross_attentions
    assert weights.shape == (2, 2, 5, 6)  # (B, H, S, T)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 2, 5))
    assert not weights[1, :, :, 4:].any()
    states[1, 4:] = 9.0
    torch.testing.assert_close(net(IDS, states, MASK).last_hidden_state, output.last_hidden_state)
    states[0, 0] += 1.0
    assert not torch.allclose(net(IDS, states, MASK).last_hidden_state, output.last_hidden_state)


def test_a_token_sees_no_later_one() -> None:
    net, changed = decoder(), IDS.clone()
    changed[:, 3:] = 20
    before, after = (net(ids, memory()).last_hidden_state for ids in (IDS, changed))
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3:], before[:, 3:])


def test_the_encoder_may_have_another_width() -> None:
    assert decoder(memory_size=24)(IDS, memory(24)).last_hidden_state.shape == (2, 5, 16)


def test_a_causal_encoder_gives_all_but_cross_attention() -> None:
    config = DecoderConfig().shape(ENCODER)
    torch.manual_seed(3)
    causal, net = Encoder(config), decoder()
    fresh = {name: weight.clone() for name, weight in net.state_dict().items()}
    net.start_from(causal)
    for name, weight in net.state_dict().items():
        taken = fresh[name] if ".cross_attention" in name else causal.state_dict()[name]
        assert torch.equal(weight, taken), name


@pytest.mark.parametrize(
    "variant",
    [
        {"norm_position": "pre", "local_attention": 1, "global_every": 2},
        {"norm_position": "output", "norm": "rms", "position": "alibi"},
        {"norm_position": "pre", "norm": "rms", "residual": False, "position": "relative"},
    ],
    ids=str,
)
def test_without_a_source_it_is_the_causal_encoder(variant: dict[str, Any]) -> None:
    config = dataclasses.replace(DecoderConfig().shape(ENCODER), **variant)
    if not config.residual:
        config = dataclasses.replace(config, num_hidden_layers=1)
    encoder, net = Encoder(config).eval(), Decoder(config, 16).eval()
    assert type(net.blocks[0].cross_attention_norm) is type(net.blocks[0].attention_norm)
    net.start_from(encoder)
    for block in net.blocks:
        for weight in block.cross_attention.output.parameters():
            torch.nn.init.zeros_(weight)
    states, expected = net(IDS, memory()).last_hidden_state, encoder({"input_ids": IDS})
    if config.residual:
        torch.testing.assert_close(states, expected.last_hidden_state)
    else:  # nothing passes by a sublayer that gives zeros
        assert not states.any()


def test_weights_of_another_shape_are_refused_in_a_line() -> None:
    other = Encoder(dataclasses.replace(DecoderConfig().shape(ENCODER), type_vocab_size=2))
    with pytest.raises(ConfigError, match="got another embeddings.token_type_embeddings.weight;"):
        decoder().start_from(other)


def test_an_encoder_that_reads_both_ways_gives_its_words() -> None:
    encoder, net = Encoder(ENCODER), decoder()
    net.start_from(encoder)
    words = encoder.embeddings.word_embeddings.weight
    assert torch.equal(net.embeddings.word_embeddings.weight, words)


def test_heads_beside_a_recurrent_encoder_divide_its_width() -> None:
    shape = DecoderConfig().shape(EncoderConfig(block="lstm", hidden_size=50))
    assert (shape.block, shape.num_attention_heads) == ("transformer", 10)
    assert DecoderConfig().shape(EncoderConfig(block="conv", hidden_size=48)).head_size == 4


def test_an_unknown_score_is_refused() -> None:
    with pytest.raises(ConfigError, match="cross_score must .* did you mean 'additive'"):
        DecoderConfig(cross_score="additve")
